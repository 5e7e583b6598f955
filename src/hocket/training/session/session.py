"""This process's share of a training: network, stages, engine and world."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hocket.checkpoint.claimed_folders import ClaimedFolders
from hocket.distributed.failures.phases import Phase
from hocket.distributed.world.joined_worlds import join_world
from hocket.distributed.world.solo_world import SoloWorld
from hocket.engine.engine import Engine, UnbuiltEngine
from hocket.engine.event import Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.modes import TrainingMode
from hocket.options.require import require_list
from hocket.restore import preserve_rng
from hocket.stage.setup import Setup
from hocket.training.results.own_metrics import Metric, OwnMetrics
from hocket.training.session.batches import BatchSplitter, DetachOnce, SplitBatch, Upload, read
from hocket.training.session.cut_network import CutNetwork, Stages
from hocket.training.session.failure_report import FailureReport
from hocket.training.session.opening import Opening
from hocket.training.session.ticks import Ticks
from hocket.training.session.updates import UpdateWatcher
from hocket.tree import Tree


class Session:
    """This process's share of a training, which is opened at its first batch.

    Args:
        network: The network.
        stages: Number of stages, where they begin, or the stages themselves.
        setup: Options that all stages share.
        watchers: Called after every action.
        meter: Compares late gradients with the true ones; None to compare none.
        split_batch: Returns the inputs and targets of a batch of a loader; None for pairs and
            mappings with labels.
        metrics: Metrics of the user's own for evaluations, by name.

    Attributes:
        cut: The network and its stages.
        setup: Options that all stages share.
        world: This process among the others, or alone.
        ticks: Feeds the engine, which has no stages before the first batch.
        splitter: Splits batches of loaders into inputs and targets.
        upload: Brings batches to the device.
        metrics: Metrics of the user's own.
        updates: Tells a listener of the updates of stages.
        training_mode: Training mode of the network.
        sample: Inputs that the network was cut with: a small part of the first batch, or all.
        checkpoint_folders: Folders that have checkpoints of this training.
        reporting_failures: Context manager that reports any error to the other processes.
        prepared: True while the engine has stages.

    Raises:
        CutError: The network cannot be cut like this.
        OptionError: An option needs several processes, or only one.
        WorldError: There are not as many processes as stages times replicas.
    """

    def __init__(
        self,
        network: nn.Module,
        stages: Stages,
        setup: Setup,
        watchers: Sequence[Watcher],
        meter: GradientErrorMeter | None,
        split_batch: SplitBatch | None,
        metrics: Mapping[str, Metric] | None,
    ) -> None:
        # Check and prepare what needs no other process.
        self.setup, self.metrics = setup, OwnMetrics(metrics or {})
        self.updates = UpdateWatcher()
        watchers = [*require_list("watchers", watchers), self.updates]
        if setup.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.cut = CutNetwork(network, stages)
        self.training_mode = TrainingMode(network)
        self.splitter = BatchSplitter(network, split_batch)
        self.upload = Upload(setup.device, DetachOnce(), channels_last=setup.channels_last)
        self.checkpoint_folders = ClaimedFolders()
        self.prepared, self.sample = False, None
        # Join the other processes, if there are any.
        self.world = world = join_world(
            self.cut.count, setup.replicas, setup.timeout_s, setup.slow_timeout_s
        )
        self.reporting_failures = FailureReport(world)
        if isinstance(world, SoloWorld):
            setup.check_alone(self.cut.count)
            network.to(setup.device)  # else each process has room for its own stage only
        # The engine comes with the first batch.
        self.ticks = self._ticks_of(UnbuiltEngine())
        self._opening = Opening(self.cut, setup, world, watchers, meter, self.upload)

    @property
    def engine(self) -> Engine:
        """Engine that executes the program; it has no stages before the first batch."""
        return self.ticks.engine

    @property
    def detached(self) -> bool:
        """True if this process trains without waiting for the others, as stages run freely."""
        return self.world.size > 1 and self.setup.method.free_running

    def prepare(self, inputs: Tree, *, whole: bool = False, resumes: bool = False) -> None:
        """Build the engine for inputs like these; later calls do nothing.

        Args:
            inputs: Inputs of a batch; not used in processes that read no data.
            whole: Cut the network with all of the inputs, not with a few samples of them.
            resumes: Let the weights of the processes differ, as a checkpoint replaces them.
        """
        if not self.prepared:
            building = self.world.in_phase(Phase.BUILDING)
            with self.reporting_failures, building, preserve_rng([self.setup.device]):
                engine, self.sample = self._opening.open(inputs, whole=whole, resumes=resumes)
            self.ticks = self._ticks_of(engine)
            self.prepared = True

    def prepared_by(
        self, batches: Iterable[Any], *, inputs_only: bool = False
    ) -> Iterator[tuple[Tree, Tree]]:
        """Return the inputs and targets of the batches; the first one builds the engine.

        Args:
            batches: The batches; not read in processes that read no data.
            inputs_only: Accept batches that are inputs without targets.
        """
        reads = self.world.reads_data
        split = self.splitter.inputs if inputs_only else self.splitter.pairs
        pairs = split(read(batches, self.world)) if reads else iter(())
        if self.prepared:
            return pairs
        first = list(itertools.islice(pairs, 1))
        if first or not reads:
            self.prepare(first[0][0] if first else None)
        return itertools.chain(first, pairs)

    def release(self) -> None:
        """Forget the stages, and undo what was done to the network."""
        self.prepared, self.sample = False, None
        self.ticks = self._ticks_of(UnbuiltEngine())
        self._opening.undo()

    def _ticks_of(self, engine: Engine) -> Ticks:
        return Ticks(engine, self.setup, self.world, self.cut, self.upload)
