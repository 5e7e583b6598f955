"""A network in stages and the engine that trains them, as far as this process has them.

The engine is built for the first batch, as cuts and auxiliary networks depend on what flows.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hocket.distributed.world import World, join_world
from hocket.engine.build import (
    build_async_process,
    build_async_simulation,
    build_distributed,
    build_serial,
)
from hocket.engine.engine import Engine
from hocket.engine.event import Event, Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.engine.setup import Setup, warn_of_bias
from hocket.errors import CutError, OptionError
from hocket.modes import evaluation_mode
from hocket.partition import (
    Plan,
    build_stages,
    cuts_between_layers,
    divide,
    is_sequential,
    layers_in_order,
    require_separate,
)
from hocket.signals import Delayed
from hocket.stage.rng import preserve_rng
from hocket.stage.scale_free import warn_if_it_cancels
from hocket.timeline import Span, Timeline
from hocket.training.metrics import EvaluationMeter, EvaluationResult
from hocket.training.state import parameter_names
from hocket.tree import Tree, map_tensors, tensors


class Session:
    """Cuts a network, builds its engine, and feeds it.

    Args:
        network: The network.
        stages: How many stages, where they begin, or the stages themselves.
        setup: What the stages have in common.
        channels_last: Whether 4-dimensional tensors are kept in that memory format.
        watchers: Called after every action.
        compare: Compares late gradients with the true ones.
        replicas: How many processes share the work of a stage.
        timeout_s: How long a process may let another one wait.

    Attributes:
        network: The network.
        plan: Where it is cut, once that is known; None for stages given as modules.
        stage_count: How many stages there are.
        setup: What they have in common.
        sample: A small part of the first batch.
        world: This process among the others; None where it is alone.
        engine: What executes the program; None before the first batch.

    Raises:
        CutError: The network cannot be cut so.
        OptionError: An option needs several processes, or one alone.
        WorldError: There are not as many processes as stages times replicas.
    """

    def __init__(
        self,
        network: nn.Module,
        stages: int | Plan | Sequence[nn.Module],
        setup: Setup,
        *,
        channels_last: bool,
        watchers: Sequence[Watcher],
        compare: GradientErrorMeter | None,
        replicas: int,
        timeout_s: float,
    ) -> None:
        _require_skippable(setup, replicas)
        self.network = network
        self.plan: Plan | None = None
        self.stage_count = count_stages(stages)
        self.setup = setup
        self.sample: Tree = None
        self.engine: Engine | None = None
        self._asked = stages
        self._channels_last = channels_last
        self._watchers = list(watchers)
        self._compare = compare
        if channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._modules = self._cut(stages)
        self.world = join_world(self.stage_count, replicas, timeout_s)
        _require_world(self.world, self.stage_count, replicas, compare)
        if self.world is None:
            network.to(setup.device)  # else each process has room for its own stage only

    @property
    def is_main(self) -> bool:
        """Whether this is the process that should print and write files."""
        return self.world is None or self.world.is_main

    @property
    def reads_data(self) -> bool:
        """Whether this process reads the data."""
        return self.world is None or self.world.stage == 0

    @property
    def replicas(self) -> int:
        """How many processes share the work of a stage."""
        return self.world.replicas if self.world is not None else 1

    @property
    def replica(self) -> int:
        """Which of them this one is."""
        return self.world.replica if self.world is not None else 0

    @property
    def detached(self) -> bool:
        """Whether this process goes on without the others, as stages run freely."""
        return self.world is not None and self.setup.method.replay is not None

    @property
    def process_name(self) -> str | None:
        """What this process is called among several, such as stage1; None where it is alone."""
        if self.world is None:
            return None
        replica = f"-replica{self.replica}" if self.replicas > 1 else ""
        return f"stage{self.world.stage}{replica}"

    @property
    def parameter_names(self) -> list[list[str]]:
        """The network's names for what each stage holds."""
        return [
            sorted(parameter_names(self.network, module, k).values())
            for k, module in enumerate(self._modules)
        ]

    def prepare(self, inputs: Tree) -> None:
        """Build the engine for inputs like these; later calls do nothing."""
        if self.engine is None:
            with self.reporting_failures(), preserve_rng(self.setup.device):
                self.engine = self._build(inputs)

    def with_engine(self, batches: Iterable[tuple[Tree, Tree]]) -> Iterator[tuple[Tree, Tree]]:
        """The batches that this process reads, once the engine is built for the first."""
        own = iter(batches) if self.reads_data else iter(())
        if self.engine is not None:
            return own
        first = list(itertools.islice(own, 1))
        if first or not self.reads_data:
            self.prepare(first[0][0] if first else None)
        return itertools.chain(first, own)

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """One tick, at which a batch of an epoch enters."""
        assert self.engine is not None, "it is prepared"
        own_inputs, own_targets = (
            self._moved((inputs, targets)) if self.reads_data else (None, None)
        )
        return self.engine.step(own_inputs, own_targets, epoch)

    def drain(self) -> list[Event]:
        """At the end of an epoch: complete what is in flight, if the method does that."""
        return self.finish() if self.setup.method.epoch_end == "drain" else []

    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient."""
        return self.engine.finish() if self.engine is not None else []

    @torch.no_grad()
    def evaluate(self, batches: Iterable[tuple[Tree, Tree]]) -> EvaluationResult:
        """The network as it is now on other data; training goes on as if nothing had been."""
        marks = EvaluationMeter(self.stage_count)
        device = self.setup.device
        with self.reporting_failures(), preserve_rng(device):
            started = self.with_engine(batches)  # which may cut the network, in its own mode
        with (
            self.reporting_failures(),
            preserve_rng(device),
            evaluation_mode(self.network, *self._modules),
        ):
            own = map(self._moved, started)
            # Replicas differ in their statistics; the first one is the network that is saved.
            for answer in self.engine.predict(own) if self.engine and not self.replica else ():
                marks.add(answer, self.setup.loss)
            whole = EvaluationMeter(self.stage_count)
            for values in self.gather(marks.values()):
                whole.merge(values)
        return whole.result()

    def timeline(self) -> Timeline:
        """What all stages spent their time on so far, on the clock of the first process."""
        offset = 0.0 if self.world is None else self.world.clock_offset()
        own = [
            (s.stage, s.kind, s.batch, s.tick, s.start_s + offset, s.end_s + offset)
            for stage in (self.engine.stages if self.engine is not None else ())
            for s in stage.recorder.spans
        ]
        rows = self.gather(own)[:: self.replicas]
        return Timeline(tuple(Span(*row) for spans in rows for row in spans))

    def gather(self, value: Any) -> list[Any]:
        """What every process gives here, in the order of stages; plain JSON values."""
        return [value] if self.world is None else self.world.gather(value)

    def collect(self) -> None:
        """Bring the weights and statistics of all stages into the network."""
        if self.world is not None:
            self.world.collect(self._modules)

    @contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Inside, whatever goes wrong is told to the other processes."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if self.world is not None:
                self.world.failures.report(error)
            raise

    def _build(self, inputs: Tree) -> Engine:
        count = count_samples(inputs)

        def first(value: Tensor) -> Tensor:
            return value[:2] if value.dim() and len(value) == count else value

        sample = map_tensors(first, inputs)
        if self.world is not None and not self.world.rejoined:
            sample = self.world.broadcast(sample)
        self.sample = sample
        sample = self._moved(sample, device_of(self.network))
        if isinstance(self._asked, int | Plan) and not self._modules:
            self.plan, self._modules = divide(self.network, self._asked, sample)
        setup, modules, watchers = self.setup, self._modules, self._watchers
        engine: Engine
        if setup.method.replay is not None and self.world is not None:
            engine = build_async_process(setup, modules, sample, watchers, self.world)
        elif setup.method.replay is not None:
            engine = build_async_simulation(setup, modules, sample, watchers)
        elif self.world is None:
            engine = build_serial(setup, modules, sample, watchers, self._compare)
        else:
            engine = build_distributed(setup, modules, sample, watchers, self.world)
        if self.is_main:
            warn_of_bias(setup, stacklevel=6)
        signal = setup.method.signal
        if isinstance(signal, Delayed) and self.is_main:
            shrunk = [
                s.updater.optimizer for s in engine.stages if s.index < self.stage_count - 1
            ]
            warn_if_it_cancels(signal.shrink, shrunk, stacklevel=5)
        return engine

    def _moved(self, values: Tree, device: torch.device | None = None) -> Tree:
        """Values on a device (of the stages, if none is given), in the network's format."""
        device = device or self.setup.device

        def move(value: Tensor) -> Tensor:
            if self._channels_last and value.dim() == 4:
                return value.to(device, memory_format=torch.channels_last)
            return value.to(device)

        return map_tensors(move, values)

    def _cut(self, stages: int | Plan | Sequence[nn.Module]) -> list[nn.Module]:
        """The stages' modules, as far as they are known without a sample."""
        if isinstance(stages, int):
            layers = list(layers_in_order(self.network)) if is_sequential(self.network) else []
            if stages < 1 or (layers and stages > len(layers)):
                many = f"it has {len(layers)} layers; " if layers else ""
                most = f"1 to {len(layers)} stages" if layers else "at least 1 stage"
                raise CutError(
                    f"cannot cut this network into {stages} stages: {many}ask for {most}"
                )
            return []
        if isinstance(stages, Plan):
            self.plan = stages
            if not cuts_between_layers(self.network, stages):
                return []  # a sample is needed
            return build_stages(self.network, stages)
        require_separate(self.network, stages)
        return list(stages)


def _require_world(
    world: World | None, count: int, replicas: int, compare: GradientErrorMeter | None
) -> None:
    """Refuse what needs several processes in one, or one in several."""
    if world is None and replicas != 1:
        raise OptionError(
            f"replicas is {replicas}, but there is only this process; start "
            f"{replicas * count}, with `hocket launch --processes` or torchrun"
        )
    if world is not None and compare is not None:
        raise OptionError(
            "gradient_error_every needs all stages in one process, and there are "
            f"{world.size}; train in one process, or leave gradient_error_every at 0"
        )


def _require_skippable(setup: Setup, replicas: int) -> None:
    """Refuse to skip batches where some of those who share one would not."""
    if replicas > 1 and (setup.on_nan == "skip" or setup.skip_batches):
        raise OptionError(
            f"{replicas} replicas share each batch, and do not agree on which to skip; leave "
            "on_nan at 'stop', or have one replica"
        )
    if setup.skip_batches and setup.method.replay is not None:
        raise OptionError(
            f"the stages of method {setup.method.name!r} run freely, and number their batches "
            "each for itself; leave skipping (on_nan='restore') out"
        )


def device_of(network: nn.Module) -> torch.device:
    """Where the network's parameters are."""
    return next((p.device for p in network.parameters()), torch.device("cpu"))


def count_stages(stages: int | Plan | Sequence[nn.Module]) -> int:
    """How many stages are asked for."""
    if isinstance(stages, int):
        return stages
    return stages.stages if isinstance(stages, Plan) else len(stages)


def count_samples(inputs: Tree) -> int:
    """How many inputs a batch has; 0 for a placeholder."""
    found = tensors(inputs)
    return len(found[0]) if found else 0
