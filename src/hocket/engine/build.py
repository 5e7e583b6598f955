"""From a method and the stages' modules to an engine that is ready for its first batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hocket.engine.compare import Compare
from hocket.engine.serial import Serial
from hocket.engine.trace import Watcher
from hocket.errors import OptionError
from hocket.method import Loss, Method, Signal
from hocket.modes import evaluating
from hocket.relay.memory import Edge, End
from hocket.signals import Objective
from hocket.stage.honour import require_honoured
from hocket.stage.linearize import build_linearizer
from hocket.stage.rewind import randomness
from hocket.stage.stage import Stage
from hocket.tree import Tree, copied
from hocket.update.step import OptimizerFactory, Per, SchedulerFactory, Updater


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all stages of a training have in common.

    Attributes:
        method: The method.
        loss: The objective.
        optimizer: Builds the optimizer of a stage from its parameters.
        scheduler: Builds the scheduler of a stage from its optimizer.
        scheduler_per: Whether the scheduler counts epochs or updates.
        seed: Where initial weights of signals and all randomness of the stages come from.
        device: Where all stages compute.
        precision: ``fp32`` or ``bf16`` (autocast).
    """

    method: Method
    loss: Loss
    optimizer: OptimizerFactory
    scheduler: SchedulerFactory | None
    scheduler_per: Per
    seed: int
    device: torch.device
    precision: str

    @property
    def dtype(self) -> torch.dtype | None:
        """What autocast computes in; None where it is off."""
        return torch.bfloat16 if self.precision == "bf16" else None


def build_serial(
    setup: Setup,
    modules: Sequence[nn.Module],
    sample: Tree,
    watchers: Sequence[Watcher],
    compare: Compare | None,
) -> Serial:
    """All stages in this process, wired up by mailboxes.

    Args:
        setup: What the stages have in common.
        modules: Their layers.
        sample: A small batch of inputs, on the device.
        watchers: Called after every action.
        compare: Compares late gradients with the true ones.

    Raises:
        OptionError: A stage cannot honour the method.
    """
    last = len(modules) - 1
    signals: list[Signal] = [setup.method.signal] * last + [Objective()]
    networks = _signal_networks(setup, modules, signals, sample)
    edges = [
        Edge(f"stage {k - 1}" if k else "the source", f"stage {k}") for k in range(last + 1)
    ]
    stages = [
        _stage(setup, k, last + 1, module, signals[k], networks[k], edges)
        for k, module in enumerate(modules)
    ]
    return Serial(setup.method, stages, edges[0], watchers, compare)


def _stage(
    setup: Setup,
    index: int,
    count: int,
    module: nn.Module,
    signal: Signal,
    signal_network: nn.Module,
    edges: Sequence[Edge],
) -> Stage:
    method = setup.method
    delay = method.delay(index, count)
    require_honoured(module, method.linearize, delay, index, setup.precision)
    trained = [p for p in module.parameters() if p.requires_grad]
    helping = list(signal_network.parameters())
    rate = method.first_stage_rate if index == 0 and count > 1 else 1.0
    return Stage(
        index=index,
        module=module,
        signal=signal,
        signal_network=signal_network,
        loss=setup.loss,
        linearizer=build_linearizer(method.linearize, delay, method.statistics),
        before=edges[index].lower(),
        after=edges[index + 1].upper() if index + 1 < count else End(),
        updater=Updater(
            trained if signal.learns else trained + helping,
            setup.optimizer,
            setup.scheduler,
            per=setup.scheduler_per,
            reduce=method.reduce,
            rate=rate,
        ),
        signal_updater=Updater(
            helping if signal.learns else [],
            setup.optimizer,
            setup.scheduler,
            per=setup.scheduler_per,
        ),
        seed=setup.seed,
        device=setup.device,
        precision=setup.dtype,
    )


@torch.no_grad()
def _signal_networks(
    setup: Setup, modules: Sequence[nn.Module], signals: Sequence[Signal], sample: Tree
) -> list[nn.Module]:
    """The network of each signal, made for the shapes that the sample takes on its way."""
    shapes: list[tuple[int, ...]] = []
    dtypes: list[torch.dtype] = []
    value = sample
    with evaluating(*modules):
        for k, module in enumerate(modules):
            value = module(copied(value))
            real = isinstance(value, torch.Tensor) and value.is_floating_point()
            if k < len(modules) - 1 and not signals[k].waits and not real:
                raise OptionError(
                    f"method {setup.method.name!r}: the output of stage {k} is not one tensor "
                    "of floating point numbers, which its signal needs; cut elsewhere, or "
                    "choose a method that waits for gradients"
                )
            shapes.append(tuple(value.shape[1:]) if real else ())
            dtypes.append(value.dtype if real else torch.get_default_dtype())
    outputs = shapes[-1][-1] if shapes[-1] else 1
    networks = []
    for k, signal in enumerate(signals):
        with randomness(setup.seed, k, 0, "signal", setup.device):
            network = signal.network(shapes[k], outputs)
        networks.append(network.to(setup.device, dtypes[k]))
    return networks
