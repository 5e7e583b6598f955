"""The same where every stage runs at its own pace, with buffers between them."""

from collections.abc import Callable, Sequence

from torch import nn

from hocket.engine.alone import Alone
from hocket.engine.assemble import ROOM, Setup, signals_of, stage_of
from hocket.engine.clock import equal
from hocket.engine.free import Free
from hocket.engine.runner import Passes, Runner
from hocket.engine.trace import Watcher
from hocket.errors import HocketError, OptionError
from hocket.relay import buffer
from hocket.relay.buffer import Buffer
from hocket.relay.carrier import Carrier, Carriers, Host
from hocket.relay.coded import Ledger
from hocket.relay.line import Line
from hocket.relay.memory import End
from hocket.relay.p2p import Connection
from hocket.relay.packet import Activation
from hocket.relay.port import After
from hocket.relay.pour import Pour
from hocket.relay.source import Source
from hocket.timeline import Recorder
from hocket.tree import Tree
from hocket.world import World


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
    lowers = [None, *map(buffer.Lower, buffers)]
    afters: list[After] = [*map(buffer.Upper, buffers), End()]
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
    lower = buffer.Lower(kept) if kept is not None else None
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
