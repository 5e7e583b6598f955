"""From a method and the stages' modules to an engine that is ready for its first batch."""

from collections.abc import Callable, Sequence

from torch import nn

from hocket.distributed.sync_batchnorm import convert_batchnorm
from hocket.distributed.world import World
from hocket.engine.async_clock import equal_speeds
from hocket.engine.async_process import AsyncProcess
from hocket.engine.async_simulated import AsyncSimulation
from hocket.engine.async_stage import AsyncStage, DataEpoch
from hocket.engine.distributed import DistributedEngine
from hocket.engine.event import Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.engine.serial import SerialEngine
from hocket.engine.setup import ROOM, Setup, build_signals, build_stage
from hocket.errors import HocketError, OptionError
from hocket.timeline import Recorder
from hocket.transport import replay_buffer
from hocket.transport.backends import Backend, Backends, HostBackend
from hocket.transport.connection import (
    Connection,
    ConnectionToNext,
    ConnectionToPrevious,
    Lookahead,
)
from hocket.transport.dropping_port import DroppingPort
from hocket.transport.encoded import SendStats
from hocket.transport.mailbox import Edge, NoNextStage
from hocket.transport.packet import Activation
from hocket.transport.port import ToNext
from hocket.transport.reconnecting import ReconnectingLink
from hocket.transport.replay_buffer import ReplayBuffer
from hocket.transport.source import Source
from hocket.tree import Tree


def build_serial(
    setup: Setup,
    modules: Sequence[nn.Module],
    sample: Tree,
    watchers: Sequence[Watcher],
    compare: GradientErrorMeter | None,
) -> SerialEngine:
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
    count, source = len(modules), Source()
    signals, networks = build_signals(setup, modules, sample)
    edges = [Edge(f"stage {k - 1}", f"stage {k}") for k in range(1, count)]
    befores = [source.port(), *(edge.to_previous() for edge in edges)]
    afters: list[ToNext] = [*(edge.to_next() for edge in edges), NoNextStage()]
    stages = [
        build_stage(
            setup,
            k,
            count,
            module,
            signals[k],
            networks[k],
            before,
            after,
            Recorder(k, keep=setup.record_timeline),
        )
        for k, (module, before, after) in enumerate(zip(modules, befores, afters, strict=True))
    ]
    return SerialEngine(setup.method, stages, source, watchers, compare)


def build_distributed(
    setup: Setup,
    modules: Sequence[nn.Module],
    sample: Tree,
    watchers: Sequence[Watcher],
    world: World,
) -> DistributedEngine:
    """The stage of this process, connected to those before and after it.

    Args:
        setup: What the stages have in common.
        modules: The layers of all stages.
        sample: A small batch of inputs, where the layers are; the same in all processes.
        watchers: Called after every action of this stage.
        world: This process among the others.

    Raises:
        OptionError: The stage cannot honour the method.
    """
    k, count, method = world.stage, len(modules), setup.method
    signals, networks = build_signals(setup, modules, sample)
    if setup.batchnorm == "shared" and world.replicas > 1:
        convert_batchnorm(nn.ModuleList([modules[k], networks[k]]), world)
    # What a neighbour can be ahead by, an opening, and what it may send of an evaluation.
    room = method.forward_delay + method.backward_delay + ROOM

    carriers = Backends(world, setup.device)

    def connect(step: int) -> Connection:
        rank = world.neighbour(step)
        carrier = carriers.to(rank)
        return Connection(world, rank, room, setup.device, carrier, checksum=setup.checksum)

    source, horizon = Source(), Lookahead()
    recorder = Recorder(k, keep=setup.record_timeline)
    before = connect(-1) if k > 0 else None
    after = connect(1) if k < count - 1 else None
    ahead = method.forward_delay if setup.resumable else 0
    back = method.backward_delay if setup.resumable else 0
    stage = build_stage(
        setup,
        k,
        count,
        modules[k],
        signals[k],
        networks[k],
        ConnectionToPrevious(before, horizon, recorder, back)
        if before is not None
        else source.port(),
        ConnectionToNext(after, horizon, recorder, ahead)
        if after is not None
        else NoNextStage(),
        recorder,
        world,
        carriers,
    )
    world.sync_replicas([stage.module, stage.signal_network])
    return DistributedEngine(method, stage, world, source, before, after, horizon, watchers)


def build_async_simulation(
    setup: Setup, modules: Sequence[nn.Module], sample: Tree, watchers: Sequence[Watcher]
) -> AsyncSimulation:
    """All stages in this process, each at its own pace, with buffers between them.

    Args:
        setup: What the stages have in common.
        modules: Their layers.
        sample: A small batch of inputs, on the device.
        watchers: Called after every action.

    Raises:
        OptionError: A stage cannot honour the method.
    """
    count, rule, passes = len(modules), setup.method.replay, DataEpoch()
    assert rule is not None, "stages that keep step have no buffers"
    signals, networks = build_signals(setup, modules, sample)
    source = Source()
    buffers = [ReplayBuffer(rule) for _ in modules[1:]]
    lowers = [None, *map(replay_buffer.BufferToPrevious, buffers)]
    afters: list[ToNext] = [*map(replay_buffer.BufferToNext, buffers), NoNextStage()]
    stages = [
        build_stage(
            setup,
            k,
            count,
            module,
            signals[k],
            networks[k],
            lower or source.port(),
            after,
            Recorder(k, keep=setup.record_timeline),
            uses=buffers[k - 1].stats if k else None,
        )
        for k, (module, lower, after) in enumerate(zip(modules, lowers, afters, strict=True))
    ]
    runners = [
        AsyncStage(stage, lower, passes, setup.method.accumulate, watchers)
        for stage, lower in zip(stages, lowers, strict=True)
    ]
    return AsyncSimulation(runners, source, passes, setup.stage_speeds or equal_speeds(count))


def build_async_process(
    setup: Setup,
    modules: Sequence[nn.Module],
    sample: Tree,
    watchers: Sequence[Watcher],
    world: World,
) -> AsyncProcess:
    """The stage of this process at its own pace, connected to those before and after it.

    Args:
        setup: What the stages have in common.
        modules: The layers of all stages.
        sample: A small batch of inputs, where the layers are; the same in all processes.
        watchers: Called after every action of this stage.
        world: This process among the others.

    Raises:
        OptionError: The stage cannot honour the method, or what is asked for needs ticks.
    """
    k, count, rule = world.stage, len(modules), setup.method.replay
    assert rule is not None, "stages that keep step have no buffers"
    pace = setup.stage_speeds or equal_speeds(count)
    if world.replicas > 1 or pace.timing != "regular":
        raise OptionError(
            f"among processes the stages of method {setup.method.name!r} have no replicas, and "
            "their turns fall as they will; leave replicas at 1 and turns at 'regular'"
        )
    signals, networks = build_signals(setup, modules, sample)
    # Whoever comes back finds ways that the others have made long since closed to it.
    carriers = None if world.rejoined else Backends(world, setup.device)
    passes, ledger = DataEpoch(), SendStats()
    kept = ReplayBuffer(rule) if k > 0 else None

    def line(step: int, keep: Callable[[Activation], None] | None = None) -> ReconnectingLink:
        rank = world.neighbour(step)

        def connect(gone: Callable[[str], HocketError], host: HostBackend | None) -> Connection:
            by: Backend | None = host or (carriers.to(rank) if carriers is not None else None)
            return Connection(
                world,
                rank,
                ROOM,
                setup.device,
                by,
                keep,
                checksum=setup.checksum,
                headers=host,
                gone=gone,
            )

        return ReconnectingLink(world, rank, connect)

    before = line(-1, kept.put) if kept is not None else None
    after = line(1) if k < count - 1 else None
    source, recorder = Source(), Recorder(k, keep=setup.record_timeline)
    lower = replay_buffer.BufferToPrevious(kept) if kept is not None else None
    stage = build_stage(
        setup,
        k,
        count,
        modules[k],
        signals[k],
        networks[k],
        lower or source.port(),
        DroppingPort(after, recorder, ledger) if after is not None else NoNextStage(),
        recorder,
        uses=kept.stats if kept is not None else None,
        ledger=ledger,
    )
    runner = AsyncStage(stage, lower, passes, setup.method.accumulate, watchers)
    rate = pace.speeds[k] / max(pace.speeds)
    return AsyncProcess(runner, source, kept, before, after, passes, rate, world)
