"""Engines of one stage, which is connected to the processes of its neighbours."""

from collections.abc import Callable
from functools import partial
from typing import cast

from torch import nn

from hocket.distributed.replicas.gradient_sync import sync_replicas
from hocket.distributed.replicas.process_exchange import ProcessExchange
from hocket.distributed.replicas.sync_batchnorm import (
    require_replaceable_forwards,
    share_statistics,
)
from hocket.distributed.world.world import World
from hocket.engine.async_process import AsyncProcess
from hocket.engine.async_stage import AsyncStage
from hocket.engine.build_stage import build_stage
from hocket.engine.distributed import DistributedEngine
from hocket.engine.engine_parts import EngineParts, as_replica
from hocket.methods.method import Replay
from hocket.program.program import Program
from hocket.timeline import Recorder
from hocket.transport.mailbox import NoNextStage, Source
from hocket.transport.packet import Activation, Gradient
from hocket.transport.port import ToNext, ToPrevious
from hocket.transport.processes.backends import Backends
from hocket.transport.processes.connection import Connection, messages_ahead
from hocket.transport.processes.connection_ports import ConnectionPort, Lookahead
from hocket.transport.processes.reconnecting import DroppingPort, ReconnectingLink
from hocket.transport.replay_buffer import BufferToPrevious, ReplayBuffer
from hocket.transport.stats import SendStats

SPARE_CAPACITY = 4
"""Places of an inbox for an opening and the messages of an evaluation."""


def build_distributed(parts: EngineParts, world: World) -> DistributedEngine:
    """Build the stage of this process, connected to the processes of its neighbours.

    Raises:
        OptionError: The stage is not compatible with the method, or its replicas cannot share
            the statistics of a layer, or meet in so many fragments.
    """
    setup, method = parts.setup, parts.setup.method
    k, count = world.stage, len(parts.modules)

    # Layers, and the networks of signals, may have BatchNorm.
    _, networks = parts.signals
    meet = parts.meet
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

    program, source = Program(method, count, only=k), Source()
    lookahead = Lookahead(lambda: program.tick_count)
    recorder = Recorder(k, keep=setup.record_timeline)
    previous = connect(-1) if k > 0 else None
    following = connect(1) if k < count - 1 else None

    # Ports. A checkpoint has to repeat packets that are taken in a later tick.
    to_previous: ToPrevious = source.port()
    if previous is not None:
        delay = method.edge_delay(k - 1)[1] if setup.resumable else 0
        to_previous = ConnectionPort(Gradient, Activation, previous, lookahead, recorder, delay)
    to_next: ToNext = NoNextStage()
    if following is not None:
        delay = method.edge_delay(k)[0] if setup.resumable else 0
        to_next = ConnectionPort(Activation, Gradient, following, lookahead, recorder, delay)

    # The stage of this process.
    stage_parts = parts.of_stage(k, to_previous, to_next, recorder=recorder)
    if world.replicas > 1:
        exchange = ProcessExchange(world, backends.gradient_group)
        stage_parts = as_replica(stage_parts, world.replica, exchange, meet)
    stage = build_stage(setup, stage_parts)
    sync_replicas(world, [stage.module, stage.signal_network])
    return DistributedEngine(
        program, stage, world, source, previous, following, lookahead, parts.watchers
    )


def build_async_process(parts: EngineParts, world: World) -> AsyncProcess:
    """Build the stage of this process at its own pace, connected to its neighbours.

    Raises:
        OptionError: The stage is not compatible with the method.
    """
    setup, k, count = parts.setup, world.stage, len(parts.modules)
    speeds = setup.stage_speeds
    assert speeds is not None, "stages that run freely have some"

    # What packets to and from the neighbours go through.
    _ = parts.signals  # built before processes wait for each other
    backends = None if world.rejoined else Backends(world, setup.device)
    send_stats = SendStats()
    buffer = ReplayBuffer(cast(Replay, setup.method.replay)) if k > 0 else None

    def link(
        offset: int, on_activation: Callable[[Activation], None] | None = None
    ) -> ReconnectingLink:
        rank = world.neighbour(offset)
        connect = partial(
            Connection,
            world,
            rank,
            SPARE_CAPACITY,
            setup.device,
            on_activation=on_activation,
            checksum=setup.checksum,
        )
        # Process groups of the others are closed to a process that comes back.
        first = None if backends is None else backends.for_peer(rank)
        return ReconnectingLink(world, rank, connect, first)

    # Links to the neighbours, and the stage between them.
    previous = link(-1, buffer.put) if buffer is not None else None
    following = link(1) if k < count - 1 else None
    source, recorder = Source(), Recorder(k, keep=setup.record_timeline)
    draw = BufferToPrevious(buffer) if buffer is not None else None
    to_next: ToNext = NoNextStage()
    if following is not None:
        to_next = DroppingPort(following, recorder, send_stats)
    stage_parts = parts.of_stage(
        k,
        draw or source.port(),
        to_next,
        recorder=recorder,
        receive_stats=buffer.stats if buffer is not None else None,
        send_stats=send_stats,
    )
    stage = build_stage(setup, stage_parts)
    async_stage = AsyncStage(stage, draw, parts.watchers)
    speed = speeds[k] / max(speeds)
    return AsyncProcess(async_stage, source, buffer, previous, following, speed, world)
