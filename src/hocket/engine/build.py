"""From a method and the stages' modules to an engine that is ready for its first batch."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from hocket.codecs.stateless import Exact
from hocket.distributed.replicas.exchange import Exchange, SimulatedExchange
from hocket.distributed.replicas.gradient_sync import GradientSync, sync_replicas
from hocket.distributed.replicas.meet import Meet, as_meet
from hocket.distributed.replicas.meetings import Meetings
from hocket.distributed.replicas.process_exchange import ProcessExchange
from hocket.distributed.replicas.sync_batchnorm import (
    require_replaceable_forwards,
    share_statistics,
)
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.engine.async_process import AsyncProcess
from hocket.engine.async_simulated import AsyncSimulation
from hocket.engine.async_stage import AsyncStage
from hocket.engine.distributed import DistributedEngine
from hocket.engine.engine import Engine
from hocket.engine.event import Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.engine.replicated import ReplicatedEngine
from hocket.engine.serial import SerialEngine
from hocket.engine.stage_streams import StageStreams, on_streams
from hocket.errors import HocketError, OptionError
from hocket.methods.method import Replay
from hocket.partition.parts.partial_module import PartialModule
from hocket.program.program import Program
from hocket.restore import dry_run
from hocket.signals import Objective
from hocket.signals.signal import Signal, StageShapes, place_of_stage
from hocket.stage.contexts import seeded_rng
from hocket.stage.layers.compatibility import check_compatible
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.stage.layers.reversible import inverts, layers_of, require_invertible
from hocket.stage.parts import StageParts
from hocket.stage.passes.back_propagate import load_backward
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.timeline import Recorder
from hocket.transport.encoded import EncodedPort
from hocket.transport.mailbox import Edge, NoNextStage, Source
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
from hocket.transport.replay_buffer import BufferToNext, BufferToPrevious, ReplayBuffer
from hocket.transport.stats import SendStats
from hocket.tree import Tree, copy_tensors


def build_stage(setup: Setup, parts: StageParts) -> Stage:
    """Build one stage on its device; a codec is put between its ports and its neighbours.

    Raises:
        OptionError: Its layers are not compatible with the method.
    """
    method = setup.method
    parts.module.to(setup.device)
    parts.signal_network.to(setup.device)
    delay = setup.graph_delay(parts.index, parts.count)
    check_compatible(
        parts.module,
        method.linearize,
        delay,
        parts.index,
        setup.precision,
        names=parts.names,
        resumable=setup.resumable,
    )
    if parts.signal.needs_gradient:
        load_backward()
    if setup.codec == Exact():
        return Stage(setup, parts)

    # Ports that encode what is sent, where there is a neighbour.
    codec, index = setup.codec, parts.index
    seed = setup.seed + parts.seed_offset
    to_previous, to_next = parts.to_previous, parts.to_next
    if index > 0:
        edge = f"the edge from stage {index} to stage {index - 1}"
        to_previous = EncodedPort(to_previous, codec.gradients, codec, seed, edge=edge)
    if index < parts.count - 1:
        to_next = EncodedPort(
            to_next,
            codec,
            codec.gradients,
            seed + index,
            parts.send_stats,
            self_contained=setup.method.free_running,
            edge=f"the edge from stage {index} to stage {index + 1}",
        )
    return Stage(setup, replace(parts, to_previous=to_previous, to_next=to_next))


@torch.enable_grad()  # for networks that differentiate in their forward
def build_signals(
    setup: Setup, modules: Sequence[nn.Module], sample: Tree
) -> tuple[list[Signal], list[nn.Module]]:
    """Build the signal of each stage, and its auxiliary network.

    The last stage has the network's own loss. Auxiliary networks are built for the shapes that
    the sample takes on its way through the stages.

    Args:
        setup: Options that all stages share.
        modules: Layers of each stage.
        sample: A small batch of inputs, with tensors of shape (B, ...).

    Raises:
        OptionError: An output is not what a signal needs.
    """
    # Forward the sample, to know the shapes on its way.
    signals = [setup.method.signal] * (len(modules) - 1) + [Objective()]
    shapes: list[tuple[int, ...] | None] = []
    dtypes: list[torch.dtype] = []
    hidden: list[list[tuple[int, ...]]] = []
    value = sample
    networks_cut = {m.network_cut for m in modules if isinstance(m, PartialModule)}
    with dry_run(*modules, *networks_cut):  # a part repeats the forward of its whole network
        for k, module in enumerate(modules):
            # Layer by layer, if they are known: signals need the shapes between them.
            value, outputs = copy_tensors(value), []
            for layer in layers_of(module):
                value, has_weights = layer(value), next(layer.parameters(), None) is not None
                if isinstance(value, torch.Tensor) and has_weights:
                    outputs.append(tuple(value.shape[1:]))
            hidden.append(outputs)

            # The shape that the stage sends on.
            shapes.append(shape := _real_shape(value))
            if shape is None and k < len(modules) - 1 and signals[k].computes:
                raise OptionError(
                    f"method {setup.method.name!r}: the output of stage {k} is not one tensor "
                    "of floating point numbers, which its signal needs; cut elsewhere, or "
                    "choose a method that waits for gradients"
                )
            dtypes.append(torch.get_default_dtype() if shape is None else value.dtype)

    # Build a network for each signal, from the shapes before and after it.
    networks = []
    for k, signal in enumerate(signals):
        known = StageShapes(
            shapes[k] or (),
            shapes[-1],
            later=tuple(chain.from_iterable(hidden[k + 1 :]))[:-1],
            before=max(sum(map(len, hidden[: k + 1])) - 1, 0),
            place=place_of_stage(k, len(modules)),
            network_input=_real_shape(sample) or (),
        )
        with seeded_rng(setup.seed, k, 0, "signal", setup.device):
            network = signal.build_network(known)
        networks.append(network.to(dtypes[k]))
    return signals, networks


def _real_shape(value: Tree) -> tuple[int, ...] | None:
    """Return the shape of one sample of a tensor of real numbers; None for other values."""
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return tuple(value.shape[1:]) if is_real else None


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
        count, before = len(self.modules), index - 1
        parts = {"recorder": Recorder(index, keep=self.setup.record_timeline)} | more
        return StageParts(
            index=index,
            count=count,
            module=self.modules[index],
            names=self.names,
            previous_inverts=index > 0
            and inverts(self.setup.method, self.modules[before], before, count),
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
    # Refuse streams where they would let nothing overlap, graphs where stages wait, and stages
    # that cannot be inverted.
    setup, free = parts.setup, parts.setup.method.free_running
    here = len(parts.modules) if isinstance(parts.world, SoloWorld) else 1
    if setup.streams and (setup.device.type != "cuda" or free or here == 1):
        waits = "run freely" if free else "wait for each other"
        raise OptionError(
            "streams let stages in lockstep overlap on one GPU, and there are "
            f"{here} in this process, which {waits}, on device {str(setup.device)!r}; leave "
            "streams out"
        )
    if setup.cuda_graphs and (free or not isinstance(parts.world, SoloWorld)):
        found = f"free stages of {setup.method.name!r}" if free else "several processes"
        raise OptionError(
            f"cuda_graphs capture the stages of one process in lockstep; here are {found}; "
            "leave cuda_graphs out"
        )
    require_invertible(setup.method, parts.modules, parts.names)

    # Build the engine of the stages here.
    if isinstance(parts.world, SoloWorld) and setup.replicas > 1:
        return build_replicated(parts)
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
    source, to_previous, to_next = _connect_here(parts)

    # On a GPU stages may compute at the same time, each on its stream.
    # Graphs are captured on a stream that all of them share.
    streams = None
    if setup.device.type == "cuda" and (setup.streams or setup.cuda_graphs):
        streams = StageStreams(setup.device, count, shared=setup.cuda_graphs)
    if setup.streams:
        to_previous, to_next = on_streams(to_previous, to_next)
    stages = [
        build_stage(setup, parts.of_stage(k, to_previous[k], to_next[k])) for k in range(count)
    ]
    return SerialEngine(setup.method, stages, source, parts.watchers, parts.meter, streams)


def _connect_here(parts: EngineParts) -> tuple[Source, list[ToPrevious], list[ToNext]]:
    """Return a source of batches, and the ports of all stages, between which are mailboxes."""
    count = len(parts.modules)
    # A batch that is in flight between two ticks must not change when the caller's memory does.
    source = Source(copies=parts.setup.method.flight(count) > 0)
    edges = [Edge(f"stage {k - 1}", f"stage {k}") for k in range(1, count)]
    to_previous: list[ToPrevious] = [source.port(), *(e.to_previous() for e in edges)]
    return source, to_previous, [*(edge.to_next() for edge in edges), NoNextStage()]


def build_replicated(parts: EngineParts) -> ReplicatedEngine:
    """Build all stages of several replicas, which are copies of the network, in this process.

    Raises:
        OptionError: The stages are not compatible with the method, or cannot be copied, or an
            option needs one replica or several processes.
    """
    # Refuse what replicas cannot do in one process.
    setup, count, replicas = parts.setup, len(parts.modules), parts.setup.replicas
    for name, is_set in (
        ("streams", setup.streams),
        ("gradient_error_every", parts.meter is not None),
        ("batchnorm='shared'", setup.batchnorm == "shared"),
    ):
        if is_set:
            raise OptionError(
                f"{replicas} replicas in one process have no {name}; leave it out, or start "
                f"{replicas * count} processes with `hocket launch --processes` or torchrun"
            )
    meet = _meet_of(parts)

    # Copy the network for the other replicas, with the names of its weights.
    try:
        copies = [deepcopy((parts.modules, parts.names)) for _ in range(1, replicas)]
    except Exception as error:
        raise OptionError(
            f"{replicas} replicas in one process are copies of the network, and it cannot be "
            f"copied: {error}; start {replicas * count} processes"
        ) from error

    # Build the stages of each replica, which meet those of the others.
    sums: list[dict[int, list[Tensor]]] = [{} for _ in range(count)]
    stages, sources = [], []
    others = [replace(parts, modules=modules, names=names) for modules, names in copies]
    for replica, own in enumerate([parts, *others]):
        source, to_previous, to_next = _connect_here(own)
        built = []
        for k in range(count):
            exchange = SimulatedExchange(replicas, sums[k])
            of_stage = own.of_stage(k, to_previous[k], to_next[k])
            built.append(build_stage(setup, _as_replica(of_stage, replica, exchange, meet)))
        stages.append(built)
        sources.append(source)
    return ReplicatedEngine(setup.method, stages, sources, parts.watchers)


def _as_replica(
    parts: StageParts, replica: int, exchange: Exchange, meet: Meet | None
) -> StageParts:
    """Return the parts of a stage that is one of several replicas, with dropout of its own."""
    parts = replace(parts, seed_offset=replica << 32)
    if meet is None:
        return replace(parts, reduction=partial(GradientSync, exchange=exchange))
    return replace(parts, meetings=partial(Meetings, meet=meet, exchange=exchange))


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
    meet = _meet_of(parts)
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
        to_previous = ConnectionToPrevious(previous, lookahead, recorder, delay)
    to_next: ToNext = NoNextStage()
    if following is not None:
        delay = method.edge_delay(k)[0] if setup.resumable else 0
        to_next = ConnectionToNext(following, lookahead, recorder, delay)

    # The stage of this process.
    stage_parts = parts.of_stage(k, to_previous, to_next, recorder=recorder)
    if world.replicas > 1:
        exchange = ProcessExchange(world, backends.gradient_group)
        stage_parts = _as_replica(stage_parts, world.replica, exchange, meet)
    stage = build_stage(setup, stage_parts)
    sync_replicas(world, [stage.module, stage.signal_network])
    return DistributedEngine(
        program, stage, world, source, previous, following, lookahead, parts.watchers
    )


def _meet_of(parts: EngineParts) -> Meet | None:
    """Return how the replicas of a stage meet; None if they do not.

    Raises:
        OptionError: A stage has fewer weights than the meetings have fragments.
    """
    if (meet := as_meet(parts.setup.meet)) is None:
        return None
    for k, pair in enumerate(zip(parts.modules, parts.signals[1], strict=True)):
        weights = {p for module in pair for p in module.parameters() if p.requires_grad}
        if 0 < len(weights) < meet.fragments:
            raise OptionError(
                f"meet has {meet.fragments} fragments, and stage {k} has only {len(weights)} "
                "weight tensors to divide; use fewer fragments"
            )
    return meet


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
    draws = [None, *map(BufferToPrevious, buffers)]
    to_next: list[ToNext] = [*map(BufferToNext, buffers), NoNextStage()]
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
        AsyncStage(stage, draw, parts.watchers)
        for stage, draw in zip(stages, draws, strict=True)
    ]
    assert setup.stage_speeds is not None, "stages that run freely have some"
    return AsyncSimulation(async_stages, source, setup.stage_speeds)


def build_async_process(parts: EngineParts, world: World) -> AsyncProcess:
    """Build the stage of this process at its own pace, connected to its neighbours.

    Raises:
        OptionError: The stage is not compatible with the method.
    """
    setup, k, count = parts.setup, world.stage, len(parts.modules)
    replay = cast(Replay, setup.method.replay)  # which lets stages run freely
    speeds = setup.stage_speeds
    assert speeds is not None, "stages that run freely have some"

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
