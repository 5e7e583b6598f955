"""Opening of a session at its first batch, whose shape decides cuts and auxiliary networks."""

import warnings
from collections.abc import Sequence

from torch import nn

from hocket.distributed.replicas.sync_batchnorm import unshare_statistics
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.engine.build import (
    EngineParts,
    build_engine,
    warn_of_biased_gradients,
    warn_of_idle_remedies,
)
from hocket.engine.engine import Engine
from hocket.engine.event import Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.errors import OptionError, warn
from hocket.partition.inputs import as_inputs
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.stage.setup import Setup
from hocket.stage.update.scale_free import warn_of_cancelled_scales
from hocket.stage.update.untrained import loss_weights, warn_of_untrained
from hocket.training.session.agreement import require_same_stages, require_same_training
from hocket.training.session.batches import Upload, first_samples
from hocket.training.session.cut_network import CutNetwork
from hocket.tree import Tree


class Opening:
    """Cuts a network at its first batch, and builds the engine that trains the stages.

    Args:
        cut: The network and its stages.
        setup: Options that all stages share.
        world: This process among the others, or alone.
        watchers: Called after every action.
        meter: Compares late gradients with the true ones; None to compare none.
        upload: Brings batches to the device of the training.

    Raises:
        OptionError: Gradients are to be compared, and there are several processes.
    """

    def __init__(
        self,
        cut: CutNetwork,
        setup: Setup,
        world: World | SoloWorld,
        watchers: Sequence[Watcher],
        meter: GradientErrorMeter | None,
        upload: Upload,
    ) -> None:
        if meter is not None and world.size > 1:
            world.close_in_background()
            raise OptionError(
                "gradient_error_every needs all stages in one process, and there are "
                f"{world.size}; train in one process, or leave it at 0"
            )
        self._cut = cut
        self._setup = setup
        self._world = world
        self._watchers = list(watchers)
        self._meter = meter
        self._upload = upload

    def open(self, inputs: Tree, *, whole: bool, resumes: bool) -> tuple[Engine, Tree]:
        """Return the engine, and the inputs that the network was cut with.

        Args:
            inputs: Inputs of a batch; not used in processes that read no data.
            whole: Cut the network with all of the inputs, not with a few samples of them.
            resumes: Let the weights of the processes differ, as a checkpoint replaces them.

        Raises:
            CutError: The network cannot be cut like this.
            OptionError: A stage is not compatible with the method.
            WorldError: The processes would not train the same.
        """
        setup, world, cut = self._setup, self._world, self._cut
        # Agree with the other processes on what to train, and on a sample.
        to_cut = self._upload.to(cut.device)
        sample = self._choose_sample(inputs, to_cut, whole) if world.reads_data else inputs
        require_same_training(world, setup, cut.network, resumes=resumes)
        sample = world.broadcast(sample)
        moved = to_cut(sample)
        # Cut the network; the main process warns of an uneven cut.
        with warnings.catch_warnings():
            if not world.is_main:
                warnings.simplefilter("ignore")
            modules = cut.cut(moved)
        # Agree on the stages.
        names = NetworkNames(cut.network)
        require_same_stages(world, setup, modules, names)
        # Build the engine, with warnings of what it does not train.
        if (known := names.parameters) and not any(weight.requires_grad for weight in known):
            warn(
                "all weights of the network are frozen, and stay as they are; unfreeze some "
                "with requires_grad_(True) before the first batch",
            )
        parts = EngineParts(setup, modules, moved, self._watchers, world, self._meter, names)
        engine = build_engine(parts)
        self._warn_of_effects(engine)
        return engine, sample

    def undo(self) -> None:
        """Undo what was done to the network, and forget watchers and meter."""
        self._watchers.clear()
        self._meter = None
        unshare_statistics(nn.ModuleList([self._cut.network, *self._cut.modules]), self._world)

    def _choose_sample(self, inputs: Tree, to_cut: Upload, whole: bool) -> Tree:
        """Return two samples of a batch, or all of it if the network does not take two.

        Args:
            inputs: Inputs of the batch.
            to_cut: Brings inputs to the device of the network.
            whole: Return all of it in any case.
        """
        inputs = as_inputs(inputs, "the batch")
        if whole:
            return inputs
        few = first_samples(inputs, 2)
        return few if self._cut.accepts(to_cut(few)) else inputs  # rows of graphs: no samples

    def _warn_of_effects(self, engine: Engine) -> None:
        """Warn of weights that are not trained, and of options that change nothing."""
        setup, world, count = self._setup, self._world, self._cut.count
        if world.replica == 0:
            names = [name for stage in engine.stages for name in stage.untrained.names]
            if world.is_main:
                names += loss_weights(setup.loss, self._cut.network)
            warn_of_untrained(names)
        if world.is_main:
            warn_of_biased_gradients(setup)
            warn_of_idle_remedies(setup.method, count)
            optimizers = {stage.index: stage.updater.optimizer for stage in engine.stages}
            warn_of_cancelled_scales(setup.method, optimizers, count - 1)
