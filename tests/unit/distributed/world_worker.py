"""Work of the processes in the tests of World; each process writes its results to a file."""

import contextlib
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store

from hocket.distributed.folder.process_state import GLOO_THREADS
from hocket.distributed.replicas.gradient_sync import sync_replicas
from hocket.distributed.world.world import World
from hocket.errors import WorldError


def build_world(name, stages, replicas=1):
    """Build a world of this process.

    Args:
        name: Name of the world, for a store of its own.
        stages: Number of stages.
        replicas: Number of replicas of each stage.
    """
    return World(stages, replicas, 20.0, PrefixStore(name, _get_default_store()))


def refusal(stages, replicas):
    """Return the message with which a world is refused."""
    try:
        build_world(f"refused {stages} {replicas}", stages, replicas)
    except WorldError as error:
        return str(error)


def gather_something_else(world):
    """Evaluate in one process only; return the message of the refusal."""
    try:
        world.gather(world.rank, "evaluating" if world.rank == 1 else "training")
    except WorldError as error:
        return str(error)


def run_four_processes():
    """Use everything in a world of two stages with two replicas."""
    rank = distributed.get_rank()
    results = {
        "too many": refusal(1, 1),
        "too few": refusal(3, 1),
        "too few for replicas": refusal(3, 2),
        "one stage": refusal(1, 4),
    }
    world = build_world("four", 2, 2)
    results["place"] = [world.stage, world.replica, world.name, world.is_main]
    results["names"] = world.names
    results["process"] = [world.process_name, world.reads_data, list(world.local_stages(2))]
    results["neighbours"] = [world.neighbour(1), world.neighbour(-1)]
    results["gather"] = world.gather({"rank": rank, "text": "é" * 1000 * rank, "none": None})
    results["different"] = gather_something_else(world)
    results["broadcast"] = broadcast(world)

    results["synced"] = sync_weights(world)
    results["clock offset"] = world.clock_offset()

    link = Link()
    world.add_link(link)
    world.close()
    world.close()
    results["link"] = link.calls
    results["threads"] = count_threads()
    return results


class Link:
    """A connection that notes how it is closed."""

    def __init__(self, quiet=True):
        self.quiet = quiet
        self.calls = []

    def begin_close(self):
        self.calls.append("begin")

    def finish_close(self, timeout_s):
        self.calls.append("finish" if 0 < timeout_s <= 20 else f"finish within {timeout_s}")
        return self.quiet


def count_threads():
    """Close worlds in various ways; return how many threads gloo has in the next one."""
    counts = {}

    def close(name, change=lambda world: None):
        world = build_world(f"before {name}", 2, 2)
        change(world)
        world.close()
        del world
        world = build_world(name, 2, 2)
        names = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
        counts[name] = sum(name.startswith(GLOO_THREADS) for name in names)
        world.close()

    def miss_a_packet(world):
        if world.rank == 3:
            world.add_link(Link(quiet=False))

    def break_off(world):
        if world.rank == 1:
            with contextlib.suppress(ValueError), world.collective("nothing"):
                raise ValueError

    close("good order")
    close("good order again")
    close("missed packet", miss_a_packet)
    close("broken operation", break_off)
    return counts


def broadcast(world):
    image = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    mine = (image, {"names": ["a", None], "empty": torch.zeros(0, 3)})
    values, others = world.broadcast(mine if world.is_main else None)
    shape = list(others["empty"].shape)
    return [values.tolist(), list(values.stride()), others["names"], shape]


def broadcast_in_place(world):
    tensors = [torch.full((2,), float(world.rank)), torch.zeros(0), torch.tensor(world.rank)]
    world.broadcast_(tensors, source=2)
    return [tensor.tolist() for tensor in tensors]


def sync_weights(world):
    """Sync weights and statistics, some of them with gaps, and return their values."""
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    gaps = nn.Parameter(torch.zeros(4, 2)[:, ::2])
    network[0].register_parameter("gaps", gaps)
    with torch.no_grad():
        for value in network.state_dict().values():
            value.fill_(world.rank)
    sync_replicas(world, [network])
    return sorted({float(v) for t in network.state_dict().values() for v in t.flatten()})
