"""Engines whose stages are all in this process."""

from copy import deepcopy
from dataclasses import replace
from typing import cast

from torch import Tensor

from hocket.distributed.replicas.exchange import SimulatedExchange
from hocket.engine.async_simulated import AsyncSimulation
from hocket.engine.async_stage import AsyncStage
from hocket.engine.build_stage import build_stage
from hocket.engine.engine_parts import EngineParts, as_replica
from hocket.engine.replicated import ReplicatedEngine
from hocket.engine.serial import SerialEngine
from hocket.engine.stage_streams import StageStreams, on_streams
from hocket.errors import OptionError
from hocket.methods.method import Replay
from hocket.transport.mailbox import Edge, NoNextStage, Source
from hocket.transport.port import ToNext, ToPrevious
from hocket.transport.replay_buffer import BufferToNext, BufferToPrevious, ReplayBuffer


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
    meet = parts.meet

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
            built.append(build_stage(setup, as_replica(of_stage, replica, exchange, meet)))
        stages.append(built)
        sources.append(source)
    return ReplicatedEngine(setup.method, stages, sources, parts.watchers)


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
    stats = [None, *(buffer.stats for buffer in buffers)]
    stages = []
    for k in range(count):
        of_stage = parts.of_stage(
            k, draws[k] or source.port(), to_next[k], receive_stats=stats[k]
        )
        stages.append(AsyncStage(build_stage(setup, of_stage), draws[k], parts.watchers))

    # Each stage takes its turns when simulated time says so.
    assert setup.stage_speeds is not None, "stages that run freely have some"
    return AsyncSimulation(stages, source, setup.stage_speeds)
