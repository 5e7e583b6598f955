"""From a method and the stages' modules to an engine that is ready for its first batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from torch import nn

from hocket.distributed.replicas.gradient_sync import sync_replicas
from hocket.distributed.replicas.sync_batchnorm import (
    require_replaceable_forwards,
    share_statistics,
)
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.engine.async_process import AsyncProcess
from hocket.engine.async_simulated import AsyncSimulation
from hocket.engine.async_stage import AsyncStage
from hocket.engine.build_stage import build_signals, build_stage, share_with_replicas
from hocket.engine.distributed import DistributedEngine
from hocket.engine.engine import Engine
from hocket.engine.event import Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.engine.serial import SerialEngine
from hocket.engine.stage_streams import StageStreams, on_streams
from hocket.errors import HocketError, OptionError
from hocket.methods.replay import Replay
from hocket.methods.simulated.stage_speeds import equal_speeds
from hocket.signals.signal import Signal
from hocket.stage.layers.network_names import NetworkNames
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.timeline import Recorder
from hocket.transport import replay_buffer
from hocket.transport.mailbox import Edge, NoNextStage
from hocket.transport.packet import Activation
from hocket.transport.port import ToNext, ToPrevious
from hocket.transport.processes.backend import Backend
from hocket.transport.processes.backends import Backends
from hocket.transport.processes.connection import Connection, messages_ahead
from hocket.transport.processes.connection_ports import (
    ConnectionToNext,
    ConnectionToPrevious,
    Lookahead,
)
from hocket.transport.processes.reconnecting import DroppingPort, ReconnectingLink
from hocket.transport.replay_buffer import ReplayBuffer
from hocket.transport.source import Source
from hocket.transport.stats import SendStats
from hocket.tree import Tree

SPARE_CAPACITY = 4
"""Places of an inbox for an opening and the messages of an evaluation."""


@dataclass(frozen=True)
class EngineParts:
    """All that an engine is built from.

    Attributes:
        setup: Options that all stages share.
        modules: Layers of every stage.
        sample: A small batch of inputs where the layers are, the same in all processes.
        watchers: Called after every action of this process.
        world: This process among the others.
        meter: Compares late gradients with the true ones; None to compare none.
        names: Names of parameters, buffers and layers in the network.
    """

    setup: Setup
    modules: Sequence[nn.Module]
    sample: Tree
    watchers: Sequence[Watcher]
    world: World | SoloWorld
    meter: GradientErrorMeter | None = None
    names: NetworkNames = field(default_factory=NetworkNames)

    @cached_property
    def signals(self) -> tuple[list[Signal], list[nn.Module]]:
        """Signal of each stage, and its auxiliary network."""
        return build_signals(self.setup, self.modules, self.sample)

    def of_stage(
        self, index: int, to_previous: ToPrevious, to_next: ToNext, **more: Any
    ) -> StageParts:
        """Return the parts of one stage.

        Args:
            index: Number of the stage.
            to_previous: Port to the stage before, or to the source of batches.
            to_next: Port to the next stage.
            more: Other parts, such as its recorder.
        """
        signals, networks = self.signals
        parts = {"recorder": Recorder(index, keep=self.setup.record_timeline)} | more
        return StageParts(
            index=index,
            count=len(self.modules),
            module=self.modules[index],
            names=self.names,
            signal=signals[index],
            signal_network=networks[index],
            to_previous=to_previous,
            to_next=to_next,
            **parts,
        )


def build_engine(parts: EngineParts) -> Engine:
    """Build the engine for these stages, in lockstep or free, in one process or several.

    Raises:
        OptionError: A stage is not compatible with the method, or an option needs ticks.
    """
    free = parts.setup.method.free_running
    alone = isinstance(parts.world, SoloWorld)
    parts.setup.check_streams(len(parts.modules) if alone else 1)
    if isinstance(parts.world, SoloWorld):
        return build_async_simulation(parts) if free else build_serial(parts)
    build = build_async_process if free else build_distributed
    return build(parts, parts.world)


def build_serial(parts: EngineParts) -> SerialEngine:
    """Build all stages in this process, connected by mailboxes.

    Raises:
        OptionError: A stage is not compatible with the method.
    """
    setup, count = parts.setup, len(parts.modules)
    # A batch that is in flight between two ticks must not change when the caller's memory does.
    source = Source(copies=setup.method.flight(count) > 0)

    # Mailboxes between the stages.
    edges = [Edge(f"stage {k - 1}", f"stage {k}") for k in range(1, count)]
    to_previous: list[ToPrevious] = [source.port(), *(e.to_previous() for e in edges)]
    to_next: list[ToNext] = [*(edge.to_next() for edge in edges), NoNextStage()]

    # On a GPU stages may compute at the same time, each on its stream.
    streams = StageStreams(setup.device, count) if setup.streams else None
    if streams is not None:
        to_previous, to_next = on_streams(to_previous, to_next)
    stages = [
        build_stage(setup, parts.of_stage(k, to_previous[k], to_next[k])) for k in range(count)
    ]
    return SerialEngine(setup.method, stages, source, parts.watchers, parts.meter, streams)


def build_distributed(parts: EngineParts, world: World) -> DistributedEngine:
    """Build the stage of this process, connected to the processes of its neighbours.

    Raises:
        OptionError: The stage is not compatible with the method, or its replicas cannot share
            the statistics of a layer.
    """
    setup, method = parts.setup, parts.setup.method
    k, count = world.stage, len(parts.modules)

    # Layers, and the networks of signals, may have BatchNorm.
    _, networks = parts.signals
    if setup.batchnorm == "shared" and world.replicas > 1:
        # Each process looks at all stages, so that all refuse, before any waits for another.
        layers = nn.ModuleList([*parts.modules, *networks])
        require_replaceable_forwards(parts.names.of_layers(layers))
        share_statistics(nn.ModuleList([parts.modules[k], networks[k]]), world)

    # Connections to the neighbours.
    backends = Backends(world, setup.device)

    def connect(offset: int) -> Connection:
        rank = world.neighbour(offset)
        # A neighbour can be ahead by so many messages, and sends some for an evaluation.
        delays = method.edge_delay(min(k, k + offset))
        return Connection(
            world,
            rank,
            sum(delays) + SPARE_CAPACITY,
            setup.device,
            backends.for_peer(rank),
            ahead=messages_ahead(delays),
            checksum=setup.checksum,
        )

    source, lookahead = Source(), Lookahead()
    recorder = Recorder(k, keep=setup.record_timeline)
    previous = connect(-1) if k > 0 else None
    following = connect(1) if k < count - 1 else None

    # Packets that a checkpoint has to repeat, as they are taken in a later tick.
    forward_delay = method.edge_delay(k)[0] if setup.resumable and following is not None else 0
    backward_delay = (
        method.edge_delay(k - 1)[1] if setup.resumable and previous is not None else 0
    )

    # The stage of this process.
    stage_parts = parts.of_stage(
        k,
        ConnectionToPrevious(previous, lookahead, recorder, backward_delay)
        if previous is not None
        else source.port(),
        ConnectionToNext(following, lookahead, recorder, forward_delay)
        if following is not None
        else NoNextStage(),
        recorder=recorder,
    )
    stage = build_stage(setup, share_with_replicas(stage_parts, world, backends))
    sync_replicas(world, [stage.module, stage.signal_network])
    return DistributedEngine(
        method, stage, world, source, previous, following, lookahead, parts.watchers
    )


def build_async_simulation(parts: EngineParts) -> AsyncSimulation:
    """Build all stages in this process, each at its own pace, with buffers between them.

    Raises:
        OptionError: A stage is not compatible with the method.
    """
    setup, count = parts.setup, len(parts.modules)
    replay = cast(Replay, setup.method.replay)  # which lets stages run freely

    # Buffers between the stages, from which each draws.
    source = Source()
    buffers = [ReplayBuffer(replay) for _ in parts.modules[1:]]
    draws = [None, *map(replay_buffer.BufferToPrevious, buffers)]
    to_next: list[ToNext] = [*map(replay_buffer.BufferToNext, buffers), NoNextStage()]
    stages = [
        build_stage(
            setup,
            parts.of_stage(
                k,
                draws[k] or source.port(),
                to_next[k],
                receive_stats=buffers[k - 1].stats if k else None,
            ),
        )
        for k in range(count)
    ]

    # Each stage takes its turns when simulated time says so.
    async_stages = [
        AsyncStage(stage, draw, setup.method.accumulate, parts.watchers)
        for stage, draw in zip(stages, draws, strict=True)
    ]
    speeds = setup.stage_speeds or equal_speeds(count)
    return AsyncSimulation(async_stages, source, speeds)


def build_async_process(parts: EngineParts, world: World) -> AsyncProcess:
    """Build the stage of this process at its own pace, connected to its neighbours.

    Raises:
        OptionError: The stage is not compatible with the method, or an option needs ticks.
    """
    setup, k, count = parts.setup, world.stage, len(parts.modules)
    replay = cast(Replay, setup.method.replay)  # which lets stages run freely
    speeds = setup.stage_speeds or equal_speeds(count)
    if world.replicas > 1 or speeds.timing != "regular":
        raise OptionError(
            f"in several processes the stages of method {setup.method.name!r} have no "
            "replicas, and the machines decide when they take their turns; leave replicas at "
            "1 and stage_timing at 'regular'"
        )

    # What packets to and from the neighbours go through.
    _ = parts.signals  # built before processes wait for each other
    backends = None if world.rejoined else Backends(world, setup.device)
    send_stats = SendStats()
    buffer = ReplayBuffer(replay) if k > 0 else None

    def link(
        offset: int, on_activation: Callable[[Activation], None] | None = None
    ) -> ReconnectingLink:
        rank = world.neighbour(offset)

        def connect(lost_error: Callable[[str], HocketError], backend: Backend) -> Connection:
            return Connection(
                world,
                rank,
                SPARE_CAPACITY,
                setup.device,
                backend,
                on_activation,
                checksum=setup.checksum,
                lost_error=lost_error,
            )

        # Process groups of the others are closed to a process that comes back.
        first = None if backends is None else backends.for_peer(rank)
        return ReconnectingLink(world, rank, connect, first)

    # Links to the neighbours, and the stage between them.
    previous = link(-1, buffer.put) if buffer is not None else None
    following = link(1) if k < count - 1 else None
    source, recorder = Source(), Recorder(k, keep=setup.record_timeline)
    draw = replay_buffer.BufferToPrevious(buffer) if buffer is not None else None
    stage = build_stage(
        setup,
        parts.of_stage(
            k,
            draw or source.port(),
            DroppingPort(following, recorder, send_stats)
            if following is not None
            else NoNextStage(),
            recorder=recorder,
            receive_stats=buffer.stats if buffer is not None else None,
            send_stats=send_stats,
        ),
    )
    async_stage = AsyncStage(stage, draw, setup.method.accumulate, parts.watchers)
    speed = speeds.speeds[k] / max(speeds.speeds)
    return AsyncProcess(async_stage, source, buffer, previous, following, speed, world)
