"""From a method and the stages' modules to an engine that is ready for its first batch."""

from collections.abc import Sequence

from torch import nn

from hocket.engine.assemble import ROOM, Setup, signals_of, stage_of
from hocket.engine.compare import Compare
from hocket.engine.distributed import Distributed
from hocket.engine.serial import Serial
from hocket.engine.trace import Watcher
from hocket.relay.carrier import Carriers
from hocket.relay.memory import Edge, End
from hocket.relay.p2p import Connection, Horizon, Lower, Upper
from hocket.relay.port import After
from hocket.relay.source import Source
from hocket.timeline import Recorder
from hocket.tree import Tree
from hocket.update.synchronized import synchronize
from hocket.world import World


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
