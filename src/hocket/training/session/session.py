"""A network in stages and the engine that trains them, as far as this process has them.

The engine is built for the first batch, as cuts and auxiliary networks depend on its shape.
"""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from hocket.checkpoint.claimed_folders import ClaimedFolders
from hocket.distributed.failures.phases import Phase
from hocket.distributed.replicas.sync_batchnorm import unshare_statistics
from hocket.distributed.world.joined_worlds import join_world
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.engine.build import EngineParts, build_engine
from hocket.engine.build_stage import warn_of_biased_gradients, warn_of_idle_remedies
from hocket.engine.engine import Engine
from hocket.engine.event import Event, Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.engine.unbuilt import UnbuiltEngine
from hocket.errors import NonFiniteError, OptionError, warn
from hocket.modes import TrainingMode
from hocket.options import require_list
from hocket.partition.inputs import as_inputs, as_tree
from hocket.restore import preserve_rng
from hocket.stage.finite.late_check import check_pending
from hocket.stage.layers.network_names import NetworkNames
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.stage.update.scale_free import warn_of_cancelled_scales
from hocket.stage.update.untrained import loss_weights, warn_of_untrained
from hocket.stage.update.updater import Updater
from hocket.timeline import Span, Timeline
from hocket.training.checkpoints.state import parameter_names
from hocket.training.results.own_metrics import Metric, OwnMetrics
from hocket.training.session.agreement import require_same_stages, require_same_training
from hocket.training.session.batches import BatchSplitter, SplitBatch, first_samples
from hocket.training.session.cut_network import CutNetwork, Stages
from hocket.training.session.upload import Upload, WithoutGraph
from hocket.training.session.whole_ticks import WholeTicks
from hocket.tree import Tree


class Session:
    """Cuts a network, builds its engine, and feeds it.

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
        metrics: Metrics of the user's own.
        upload: Brings batches to the device.
        world: This process among the others, or alone.
        engine: Engine that executes the program; it has no stages before the first batch.
        training_mode: Training mode of the network.
        sample: Inputs that the network was cut with: a small part of the first batch, or all.
        whole_ticks: Ticks that an error has cut short.
        checkpoint_folders: Folders that have checkpoints of this training.
        collected: True if the network has the present weights of all stages.
        prepared: True while the engine has stages.
        closed: True once the session cannot be used any more.

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
        self.metrics, self.setup = OwnMetrics(metrics or {}), setup
        self.collected = True
        self.engine: Engine = UnbuiltEngine()
        self.sample: Tree = None
        self._without_graph = WithoutGraph()
        self.upload = self._upload_to(setup.device)
        self._on_update: Callable[[Stage], None] | None = None
        self.checkpoint_folders = ClaimedFolders()
        self._ticks_per_check = setup.ticks_per_check
        self._watchers = [*require_list("watchers", watchers), self._watch_updates]
        self._meter = meter
        self.prepared = self.closed = False
        if setup.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.cut = CutNetwork(network, stages)
        self.whole_ticks = WholeTicks(setup.method, self.cut.count)
        self.training_mode = TrainingMode(network)
        self.splitter = BatchSplitter(network, split_batch)
        self.world = join_world(
            self.cut.count, setup.replicas, setup.timeout_s, setup.slow_timeout_s
        )
        if isinstance(self.world, SoloWorld):
            setup.check_alone(self.cut.count)
            network.to(setup.device)  # else each process has room for its own stage only
        elif meter is not None:
            self.world.close_in_background()
            raise OptionError(
                "gradient_error_every needs all stages in one process, and there are "
                f"{self.world.size}; train in one process, or leave it at 0"
            )

    @property
    def detached(self) -> bool:
        """True if this process trains without waiting for the others, as stages run freely."""
        return self.world.size > 1 and self.setup.method.free_running

    @property
    def parameter_names(self) -> list[list[str]]:
        """For each stage, the network's names of what it holds."""
        return [
            sorted(parameter_names(self.cut.network, module, k).values())
            for k, module in enumerate(self.cut.modules)
        ]

    def prepare(self, inputs: Tree, *, whole: bool = False, resumes: bool = False) -> None:
        """Build the engine for inputs like these; later calls do nothing.

        Args:
            inputs: Inputs of a batch; not used in processes that read no data.
            whole: Cut the network with all of the inputs, not with a few samples of them.
            resumes: Let the weights of the processes differ, as a checkpoint replaces them.
        """
        if not self.prepared:
            building = self.world.in_phase(Phase.BUILDING)
            with self.reporting_failures(), building, preserve_rng([self.setup.device]):
                self.engine = self._build(inputs, whole, resumes)
            self.prepared = True

    def prepared_by(
        self, batches: Iterable[Any], *, inputs_only: bool = False
    ) -> Iterator[tuple[Tree, Tree]]:
        """Return the inputs and targets of the batches that this process reads.

        The first one builds the engine.

        Args:
            batches: The batches.
            inputs_only: Accept batches that are inputs without targets.
        """
        reads = self.world.reads_data
        split = self.splitter.inputs if inputs_only else self.splitter.pairs
        pairs = split(self._read(iter(batches))) if reads else iter(())
        if self.prepared:
            return pairs
        first = list(itertools.islice(pairs, 1))
        if first or not reads:
            self.prepare(first[0][0] if first else None)
        return itertools.chain(first, pairs)

    def _read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches; other processes hear of the phase while one is read."""
        while True:
            with self.world.in_phase(Phase.READING):
                batch = list(itertools.islice(batches, 1))
            if not batch:
                return
            yield batch[0]

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Do the tick in which a batch enters, and those that flush a full group.

        Args:
            inputs: Inputs of the batch, with tensors of shape (B, ...).
            targets: Targets of the batch.
            epoch: Epoch that the batch belongs to.

        Raises:
            DataError: There is no tensor among the inputs.
        """
        self.whole_ticks.require_batches()
        if self.world.reads_data:
            pair = as_inputs(inputs, "the batch"), as_tree(targets)
            inputs, targets = self.upload(pair)
        else:
            inputs = targets = None
        self.collected = self.world.size == 1
        engine, every = self.engine, self._ticks_per_check
        ticks = engine.tick_count if every > 1 else 0
        try:
            events = engine.step(inputs, targets, epoch)
        except BaseException as error:
            self.whole_ticks.end(error, self.engine.stages)
            raise
        if every > 1 and engine.tick_count // every > ticks // every:
            self.look()
        return events

    @contextmanager
    def telling_of_updates(self, on_update: Callable[[Stage], None]) -> Iterator[None]:
        """Context manager in which a function is told of each update of a stage's weights."""
        self._on_update = on_update
        try:
            yield
        finally:
            self._on_update = None

    def _watch_updates(self, event: Event, stage: Stage) -> None:
        updates = event.action.kind == "U" and not event.report.skipped
        if updates and self._on_update is not None:
            self._on_update(stage)

    @property
    def follows_losses(self) -> bool:
        """True if a scheduler follows the validation loss of each epoch."""
        return any(updater.follows_losses for updater in self._updaters())

    def note_loss(self, epoch: int, loss: float) -> None:
        """Tell the schedulers that follow it the validation loss of an epoch.

        Args:
            epoch: Number of the epoch.
            loss: Its validation loss.
        """
        for updater in self._updaters():
            updater.note_loss(epoch, loss)

    def _updaters(self) -> Iterator[Updater]:
        for stage in self.engine.stages:
            yield from (stage.updater, stage.signal_updater)

    def drain(self) -> list[Event]:
        """At the end of an epoch, complete what is in flight if the method asks for that.

        Raises:
            NonFiniteError: Something became NaN or infinite, and nobody has looked since.
        """
        if self.setup.method.epoch_end != "drain":
            self.look()
            return []
        return self.finish()

    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient.

        Raises:
            NonFiniteError: Something became NaN or infinite, and nobody has looked since.
        """
        self.whole_ticks.require_batches()
        try:
            events = self.engine.finish()
        except BaseException as error:
            self.whole_ticks.end(error, self.engine.stages)
            raise
        self.look()
        return events

    def look(self) -> None:
        """Find out about faults of the stages here that nobody has looked for yet.

        Raises:
            NonFiniteError: There is one. The stages are in their states of the last look.
        """
        try:
            check_pending([stage.late_check for stage in self.engine.stages])
        except NonFiniteError as error:
            self.whole_ticks.end(error, self.engine.stages)
            raise

    def timeline(self) -> Timeline:
        """Return the time spans of all stages so far, on the clock of the first process."""
        offset_s = self.world.clock_offset()
        spans = [
            (s.stage, s.kind, s.batch, s.tick, s.start_s + offset_s, s.end_s + offset_s)
            for stage in self.engine.stages
            for s in stage.recorder.spans
        ]
        rows = self.world.gather(spans)[:: self.world.replicas]
        return Timeline(tuple(Span(*row) for spans in rows for row in spans))

    def collect(self) -> None:
        """Bring the weights and statistics of all stages into the network."""
        for stage, module in enumerate(self.cut.modules):
            self.world.copy_weights(module, source=stage * self.world.replicas)
        self.cut.warn_of_replaced_weights()
        self.collected = True

    def close(self) -> None:
        """Leave the world in good order, and give the network back."""
        if not self.closed:
            self.world.close()
            self._release()

    def abandon(self, error: BaseException) -> None:
        """Leave the world because of an error, of which the other processes are told."""
        if not self.closed:
            self.world.report_failure(error)
            self.world.close_in_background()
            self._release()

    def _release(self) -> None:
        """Undo what was done to the network, and forget the stages."""
        self.prepared, self.closed = False, True
        self.engine, self.sample, self._meter = UnbuiltEngine(), None, None
        self._watchers.clear()
        unshare_statistics(nn.ModuleList([self.cut.network, *self.cut.modules]), self.world)

    def reporting_failures(self) -> "_ReportingFailures":
        """Return a context manager that tells the other processes of any error."""
        return _ReportingFailures(self.world)

    def _upload_to(self, device: torch.device) -> Upload:
        return Upload(device, self._without_graph, channels_last=self.setup.channels_last)

    def _build(self, inputs: Tree, whole: bool, resumes: bool) -> Engine:
        sample = inputs
        to_cut = self._upload_to(self.cut.device)
        if self.world.reads_data:
            sample = inputs = as_inputs(inputs, "the batch")
            if not whole:
                few = first_samples(inputs, 2)
                accepted = self.cut.accepts(to_cut(few))
                sample = few if accepted else inputs  # rows of graphs are no samples
        setup, world = self.setup, self.world
        if not world.rejoined:
            require_same_training(world, setup, self.cut.network, resumes=resumes)
            sample = world.broadcast(sample)
        self.sample, sample = sample, to_cut(sample)
        with warnings.catch_warnings():
            if not self.world.is_main:
                warnings.simplefilter("ignore")  # the main process warns of an uneven cut
            modules = self.cut.cut(sample)
        names = NetworkNames(self.cut.network)
        if not world.rejoined:
            require_same_stages(world, setup, modules, names)
        if (known := names.parameters) and not any(weight.requires_grad for weight in known):
            warn(
                "all weights of the network are frozen, and stay as they are; unfreeze some "
                "with requires_grad_(True) before the first batch",
            )
        parts = EngineParts(setup, modules, sample, self._watchers, world, self._meter, names)
        engine = build_engine(parts)
        if self.world.replica == 0:
            self._warn_of_untrained(engine)
        if self.world.is_main:
            warn_of_biased_gradients(setup)
            warn_of_idle_remedies(setup.method, self.cut.count)
            optimizers = {stage.index: stage.updater.optimizer for stage in engine.stages}
            warn_of_cancelled_scales(setup.method, optimizers, self.cut.count - 1)
        return engine

    def _warn_of_untrained(self, engine: Engine) -> None:
        """Warn of weights of the stages here and of the loss that nobody trains."""
        names = [name for stage in engine.stages for name in stage.untrained.names]
        if self.world.is_main:
            names += loss_weights(self.setup.loss, self.cut.network)
        warn_of_untrained(names)


class _ReportingFailures:
    """Context manager that tells the other processes of any error; every step enters one."""

    __slots__ = ("_world",)

    def __init__(self, world: World | SoloWorld) -> None:
        self._world = world

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception | SystemExit):
            self._world.report_failure(error)
