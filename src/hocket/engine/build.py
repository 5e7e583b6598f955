"""From a method and the stages' modules to an engine that is ready for its first batch."""

from collections.abc import Callable, Sequence

from torch import nn

from hocket.distributed.sync_batchnorm import synchronize
from hocket.distributed.world import World
from hocket.engine.async_clock import equal
from hocket.engine.async_process import Alone
from hocket.engine.async_simulated import Free
from hocket.engine.async_stage import Passes, Runner
from hocket.engine.distributed import Distributed
from hocket.engine.event import Watcher
from hocket.engine.gradient_error import Compare
from hocket.engine.serial import Serial
from hocket.engine.setup import ROOM, Setup, signals_of, stage_of
from hocket.errors import HocketError, OptionError
from hocket.timeline import Recorder
from hocket.transport import replay_buffer
from hocket.transport.backends import Carrier, Carriers, Host
from hocket.transport.connection import Connection, Horizon, Lower, Upper
from hocket.transport.dropping_port import Pour
from hocket.transport.encoded import Ledger
from hocket.transport.mailbox import Edge, End
from hocket.transport.packet import Activation
from hocket.transport.port import After
from hocket.transport.reconnecting import Line
from hocket.transport.replay_buffer import Buffer
from hocket.transport.source import Source
from hocket.tree import Tree


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
    count, source = len(modules), Source()
    signals, networks = signals_of(setup, modules, sample)
    edges = [Edge(f"stage {k - 1}", f"stage {k}") for k in range(1, count)]
    befores = [source.lower(), *(edge.lower() for edge in edges)]
    afters: list[After] = [*(edge.upper() for edge in edges), End()]
    stages = [
        stage_of(
            setup,
            k,
            count,
            module,
            signals[k],
            networks[k],
            before,
            after,
            Recorder(k, keep=setup.trace),
        )
        for k, (module, before, after) in enumerate(zip(modules, befores, afters, strict=True))
    ]
    return Serial(setup.method, stages, source, watchers, compare)


def build_distributed(
    setup: Setup,
    modules: Sequence[nn.Module],
    sample: Tree,
    watchers: Sequence[Watcher],
    world: World,
) -> Distributed:
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
    signals, networks = signals_of(setup, modules, sample)
    if setup.batchnorm == "shared" and world.replicas > 1:
        synchronize(nn.ModuleList([modules[k], networks[k]]), world)
    # What a neighbour can be ahead by, an opening, and what it may send of an evaluation.
    room = method.forward_delay + method.backward_delay + ROOM

    carriers = Carriers(world, setup.device)

    def connect(step: int) -> Connection:
        rank = world.neighbour(step)
        carrier = carriers.to(rank)
        return Connection(world, rank, room, setup.device, carrier, checksum=setup.checksum)

    source, horizon = Source(), Horizon()
    recorder = Recorder(k, keep=setup.trace)
    before = connect(-1) if k > 0 else None
    after = connect(1) if k < count - 1 else None
    ahead = method.forward_delay if setup.resumable else 0
    back = method.backward_delay if setup.resumable else 0
    stage = stage_of(
        setup,
        k,
        count,
        modules[k],
        signals[k],
        networks[k],
        Lower(before, horizon, recorder, back) if before is not None else source.lower(),
        Upper(after, horizon, recorder, ahead) if after is not None else End(),
        recorder,
        world,
        carriers,
    )
    world.align([stage.module, stage.signal_network])
    return Distributed(method, stage, world, source, before, after, horizon, watchers)


def build_free(
    setup: Setup, modules: Sequence[nn.Module], sample: Tree, watchers: Sequence[Watcher]
) -> Free:
    """All stages in this process, each at its own pace, with buffers between them.

    Args:
        setup: What the stages have in common.
        modules: Their layers.
        sample: A small batch of inputs, on the device.
        watchers: Called after every action.

    Raises:
        OptionError: A stage cannot honour the method.
    """
    count, rule, passes = len(modules), setup.method.replay, Passes()
    assert rule is not None, "stages that keep step have no buffers"
    signals, networks = signals_of(setup, modules, sample)
    source = Source()
    buffers = [Buffer(rule) for _ in modules[1:]]
    lowers = [None, *map(replay_buffer.Lower, buffers)]
    afters: list[After] = [*map(replay_buffer.Upper, buffers), End()]
    stages = [
        stage_of(
            setup,
            k,
            count,
            module,
            signals[k],
            networks[k],
            lower or source.lower(),
            after,
            Recorder(k, keep=setup.trace),
            uses=buffers[k - 1].uses if k else None,
        )
        for k, (module, lower, after) in enumerate(zip(modules, lowers, afters, strict=True))
    ]
    runners = [
        Runner(stage, lower, passes, setup.method.accumulate, watchers)
        for stage, lower in zip(stages, lowers, strict=True)
    ]
    return Free(runners, source, passes, setup.pace or equal(count))


def build_alone(
    setup: Setup,
    modules: Sequence[nn.Module],
    sample: Tree,
    watchers: Sequence[Watcher],
    world: World,
) -> Alone:
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
    pace = setup.pace or equal(count)
    if world.replicas > 1 or pace.turns != "regular":
        raise OptionError(
            f"among processes the stages of method {setup.method.name!r} have no replicas, and "
            "their turns fall as they will; leave replicas at 1 and turns at 'regular'"
        )
    signals, networks = signals_of(setup, modules, sample)
    # Whoever comes back finds ways that the others have made long since closed to it.
    carriers = None if world.returned else Carriers(world, setup.device)
    passes, ledger = Passes(), Ledger()
    kept = Buffer(rule) if k > 0 else None

    def line(step: int, keep: Callable[[Activation], None] | None = None) -> Line:
        rank = world.neighbour(step)

        def connect(gone: Callable[[str], HocketError], host: Host | None) -> Connection:
            by: Carrier | None = host or (carriers.to(rank) if carriers is not None else None)
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

        return Line(world, rank, connect)

    before = line(-1, kept.put) if kept is not None else None
    after = line(1) if k < count - 1 else None
    source, recorder = Source(), Recorder(k, keep=setup.trace)
    lower = replay_buffer.Lower(kept) if kept is not None else None
    stage = stage_of(
        setup,
        k,
        count,
        modules[k],
        signals[k],
        networks[k],
        lower or source.lower(),
        Pour(after, recorder, ledger) if after is not None else End(),
        recorder,
        uses=kept.uses if kept is not None else None,
        ledger=ledger,
    )
    runner = Runner(stage, lower, passes, setup.method.accumulate, watchers)
    rate = pace.rates[k] / max(pace.rates)
    return Alone(runner, source, kept, before, after, passes, rate, world)
