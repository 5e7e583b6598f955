"""A network in stages and the engine that trains them, as far as this process has them.

The engine is built for the first batch, as cuts and auxiliary networks depend on its shape.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hocket.distributed.solo_world import SoloWorld
from hocket.distributed.world import join_world
from hocket.engine.build import EngineParts, build_engine
from hocket.engine.build_stage import warn_of_biased_gradients
from hocket.engine.engine import Engine
from hocket.engine.event import Event, Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.engine.unbuilt import UnbuiltEngine
from hocket.errors import OptionError
from hocket.modes import evaluation_mode
from hocket.signals import Delayed
from hocket.stage.rng import preserve_rng
from hocket.stage.scale_free import warn_if_shrink_cancels
from hocket.stage.setup import Setup
from hocket.timeline import Span, Timeline
from hocket.training.cut_network import CutNetwork, Stages
from hocket.training.metrics import EvaluationMeter, EvaluationResult
from hocket.training.state import parameter_names
from hocket.tree import Tree, map_tensors, tensors


class Session:
    """Cuts a network, builds its engine, and feeds it.

    Args:
        network: The network.
        stages: Number of stages, where they begin, or the stages themselves.
        setup: Options that all stages share.
        watchers: Called after every action.
        meter: Compares late gradients with the true ones; None to compare none.

    Attributes:
        cut: The network and its stages.
        setup: Options that all stages share.
        world: This process among the others, or alone.
        engine: Engine that executes the program; it has no stages before the first batch.
        sample: A small part of the first batch.

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
        watchers: Sequence[Watcher] = (),
        meter: GradientErrorMeter | None = None,
    ) -> None:
        self.setup = setup
        self.engine: Engine = UnbuiltEngine()
        self.sample: Tree = None
        self._watchers = list(watchers)
        self._meter = meter
        if setup.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.cut = CutNetwork(network, stages)
        self.world = join_world(self.cut.count, setup.replicas, setup.timeout_s)
        if isinstance(self.world, SoloWorld):
            _check_alone(setup, self.cut.count)
            network.to(setup.device)  # else each process has room for its own stage only
        elif meter is not None:
            raise OptionError(
                "gradient_error_every needs all stages in one process, and there are "
                f"{self.world.size}; train in one process, or leave it at 0"
            )

    @property
    def prepared(self) -> bool:
        """True once the engine is built."""
        return not isinstance(self.engine, UnbuiltEngine)

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

    def prepare(self, inputs: Tree) -> None:
        """Build the engine for inputs like these; later calls do nothing."""
        if not self.prepared:
            with self.reporting_failures(), preserve_rng(self.setup.device):
                self.engine = self._build(inputs)

    def prepared_by(self, batches: Iterable[tuple[Tree, Tree]]) -> Iterator[tuple[Tree, Tree]]:
        """Return the batches that this process reads; the first one builds the engine."""
        reads = self.world.reads_data
        batches = iter(batches) if reads else iter(())
        if self.prepared:
            return batches
        first = list(itertools.islice(batches, 1))
        if first or not reads:
            self.prepare(first[0][0] if first else None)
        return itertools.chain(first, batches)

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Do one tick, at which a batch enters.

        Args:
            inputs: Inputs of the batch, with tensors of shape (B, ...).
            targets: Targets of the batch.
            epoch: Epoch that the batch belongs to.
        """
        if self.world.reads_data:
            inputs, targets = self._to_device((inputs, targets), self.setup.device)
        else:
            inputs = targets = None
        return self.engine.step(inputs, targets, epoch)

    def drain(self) -> list[Event]:
        """At the end of an epoch, complete what is in flight if the method asks for that."""
        return self.engine.finish() if self.setup.method.epoch_end == "drain" else []

    @torch.no_grad()
    def evaluate(self, batches: Iterable[tuple[Tree, Tree]]) -> EvaluationResult:
        """Measure the network as it is now on other data; its training is not disturbed."""
        meter = EvaluationMeter(self.cut.count)
        device = self.setup.device
        with self.reporting_failures(), preserve_rng(device):
            batches = self.prepared_by(batches)  # cuts the network, in its own mode
        modules = (self.cut.network, *self.cut.modules)
        with self.reporting_failures(), preserve_rng(device), evaluation_mode(*modules):
            moved = (self._to_device(batch, device) for batch in batches)
            # Replicas differ in their statistics; the first one is the network that is saved.
            predictions = self.engine.predict(moved) if self.world.replica == 0 else ()
            for prediction in predictions:
                meter.add(prediction, self.setup.loss)
            total = EvaluationMeter(self.cut.count)
            for values in self.world.gather(meter.values()):
                total.merge(values)
        return total.result()

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
        self.world.collect_weights(self.cut.modules)

    @contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Context manager that tells the other processes of any error.

        Raises:
            Exception: The body raised it.
            SystemExit: The body ended the process.
        """
        try:
            yield
        except (Exception, SystemExit) as error:
            self.world.report_failure(error)
            raise

    def _build(self, inputs: Tree) -> Engine:
        count = count_samples(inputs)

        def first(value: Tensor) -> Tensor:
            return value[:2] if value.dim() and len(value) == count else value

        sample = map_tensors(first, inputs)
        if not self.world.rejoined:
            sample = self.world.broadcast(sample)
        self.sample = sample
        sample = self._to_device(sample, self.cut.device)
        setup, modules = self.setup, self.cut.cut(sample)
        parts = EngineParts(setup, modules, sample, self._watchers, self.world, self._meter)
        engine = build_engine(parts)
        if self.world.is_main:
            warn_of_biased_gradients(setup, stacklevel=6)
            signal = setup.method.signal
            if isinstance(signal, Delayed):
                last = self.cut.count - 1
                shrunk = [s.updater.optimizer for s in engine.stages if s.index < last]
                warn_if_shrink_cancels(signal.shrink, shrunk, stacklevel=5)
        return engine

    def _to_device(self, values: Tree, device: torch.device) -> Tree:
        channels_last = self.setup.channels_last

        def move(value: Tensor) -> Tensor:
            if channels_last and value.dim() == 4:
                return value.to(device, memory_format=torch.channels_last)
            return value.to(device)

        return map_tensors(move, values)


def count_samples(inputs: Tree) -> int:
    """Return the number of samples of a batch; 0 for a placeholder."""
    leaves = tensors(inputs)
    return len(leaves[0]) if leaves else 0


def _check_alone(setup: Setup, stages: int) -> None:
    if setup.replicas != 1:
        raise OptionError(
            f"replicas is {setup.replicas}, but there is only this process; start "
            f"{setup.replicas * stages}, with `hocket launch --processes` or torchrun"
        )
