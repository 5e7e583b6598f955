"""A network and the modules of its stages, as soon as they are known."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.errors import CutError, OptionError, warn
from hocket.modes import evaluation_mode, training_mode
from hocket.partition import (
    Plan,
    build_stages,
    call_network,
    cuts_between_layers,
    divide,
    is_sequential,
    layers_in_order,
    require_separate,
)
from hocket.partition.cutting import require_enough
from hocket.partition.unfit_network import require_unscripted
from hocket.restore import restore_state
from hocket.tree import Tree, copy_tensors

Stages = int | Plan | Sequence[nn.Module]
"""Number of stages, where they begin, or the stages themselves."""


class CutNetwork:
    """A network that is cut at once where that needs no sample, else at the first batch.

    Attributes:
        network: The network.
        plan: Cuts of the network once they are known; None for stages given as modules.
        count: Number of stages.
        modules: Modules of the stages; empty until they are known.
        collected: True if the network has the current weights of all stages.

    Raises:
        CutError: The network cannot be cut like this.
    """

    def __init__(self, network: nn.Module, stages: Stages) -> None:
        require_unscripted(network)
        # Wrappers of PyTorch that average gradients or divide weights.
        for name, module in network.named_modules():
            fully_sharded = type(module).__module__.startswith("torch.distributed.fsdp")
            if fully_sharded or isinstance(module, nn.parallel.DistributedDataParallel):
                raise CutError(
                    f"the module {name or 'at the top'!r} is wrapped for data-parallel "
                    "training, which averages the gradients of whole networks; give the module "
                    "in it (wrapped.module), and replicas=N to share the work of each stage"
                )
        self.network = network
        self.plan = stages if isinstance(stages, Plan) else None
        self.count = count_stages(stages)
        self.modules: list[nn.Module] = []
        self.collected = True
        self._stages = stages
        self._trained: set[int] = set()  # of weights that the stages hold
        # Cut the network at once where that needs no sample, and refuse impossible numbers.
        if isinstance(stages, int):
            if is_sequential(network):
                require_enough(stages, len(layers_in_order(network)))
            elif stages < 1:
                raise CutError(f"cannot cut this network into {stages} stages; give 1 or more")
        elif isinstance(stages, Plan):
            if cuts_between_layers(network, stages):
                self.modules = build_stages(network, stages)
        else:
            require_separate(network, stages)
            self.modules = list(stages)

    @property
    def parameter_names(self) -> list[list[str]]:
        """For each stage, the network's names of its parameters and buffers."""
        return [
            sorted(parameter_names(self.network, module, k).values())
            for k, module in enumerate(self.modules)
        ]

    @torch.no_grad()
    def accepts(self, sample: Tree) -> bool:
        """Return True if the forward of the network takes the sample.

        In evaluation mode, and in training mode as well if it is to be recorded in both.

        Raises:
            OutOfMemoryError: The memory of the GPU was short.
        """
        try:
            recorded = not self.modules and not is_sequential(self.network)
            layers = (self.network, *self.modules)
            for mode in (evaluation_mode, training_mode) if recorded else (evaluation_mode,):
                with mode(*layers), restore_state(*layers):
                    self._forward(sample)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return False
        return True

    def _forward(self, sample: Tree) -> None:
        if isinstance(self._stages, int | Plan):
            call_network(self.network, copy_tensors(sample))
            return
        for module in self.modules:
            sample = module(copy_tensors(sample))

    def cut(self, sample: Tree) -> Sequence[nn.Module]:
        """Cut the network, if it is not cut yet; return the modules of its stages.

        Args:
            sample: A small batch of inputs, on the network's device.

        Raises:
            CutError: The network cannot be cut like this.
        """
        if isinstance(self._stages, int | Plan) and not self.modules:
            self.plan, self.modules = divide(self.network, self._stages, sample)
        self._trained = {id(weight) for weight in self.network.parameters()}
        return self.modules

    def collect(self, world: World | SoloWorld) -> dict[int, Tensor]:
        """Bring the weights and statistics of all stages into the network of each process.

        A later replica trains on with the tensors of its stage, so it keeps them; the result
        has the first replica's values by their ids.
        """
        firsts: dict[int, Tensor] = {}
        for stage, module in enumerate(self.modules):
            source = stage * world.replicas
            if stage == world.stage and world.replica:
                values = world.broadcast({}, source)
                own = [*module.named_parameters(), *module.named_buffers()]
                firsts = {id(kept): values[name] for name, kept in own if name in values}
            else:
                world.copy_weights(module, source)
        self.collected = True
        self.warn_of_new_weights()
        return firsts

    def state_dict(self, world: World | SoloWorld) -> dict[str, Any]:
        """Collect, and return the state of the network with the first replica's tensors."""
        firsts, state = self.collect(world), self.network.state_dict()
        for name, kept in self.network.state_dict(keep_vars=True).items() if firsts else ():
            if id(kept) in firsts:
                state[name] = firsts[id(kept)].to(kept.device)
        return state

    def warn_of_new_weights(self) -> None:
        """Warn of weights that came into the network after its stages were built."""
        named = self.network.named_parameters()
        names = [repr(name) for name, weight in named if id(weight) not in self._trained]
        if names and self._trained:
            warn(
                f"{', '.join(names)} came into the network after its stages were built, and "
                "are not trained; build a new trainer, or copy values into the weights in place"
            )


def parameter_names(network: nn.Module, module: nn.Module, stage: int) -> dict[str, str]:
    """Return the network's names of a stage's parameters and buffers, by the stage's names.

    Args:
        network: The network.
        module: Layers of the stage.
        stage: Number of the stage, for what the network has no name for.
    """
    of_all = [*network.named_parameters(), *network.named_buffers()]
    own = [*module.named_parameters(), *module.named_buffers()]
    known = {id(value): name for name, value in of_all}
    return {name: known.get(id(value), f"stage {stage}: {name}") for name, value in own}


def find_device(network: nn.Module) -> torch.device:
    """Return the device of a network's parameters; the CPU for a network without any."""
    return next((p.device for p in network.parameters()), torch.device("cpu"))


def count_stages(stages: Stages) -> int:
    """Return the number of stages.

    Raises:
        OptionError: It is given in another form.
    """
    if isinstance(stages, int) and not isinstance(stages, bool):
        return stages
    if isinstance(stages, Plan):
        return stages.stages
    if isinstance(stages, Sequence) and all(isinstance(each, nn.Module) for each in stages):
        return len(stages)
    raise OptionError(f"stages is {stages!r}; use a whole number, a Plan, or a list of modules")
