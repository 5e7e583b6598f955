"""What processes find when they meet; each process imports this by name and writes a file."""

import json
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store

from hocket.distributed import gradient_sync
from hocket.distributed.gradient_sync import GradientSync
from hocket.distributed.world import World
from hocket.errors import WorldError


def joined(name, stages, replicas=1):
    return World(stages, replicas, 20.0, PrefixStore(name, _get_default_store()))


def refused(stages, replicas):
    try:
        joined(f"refused {stages} {replicas}", stages, replicas)
    except WorldError as error:
        return str(error)


def in_four(folder):
    """The whole of a world of two stages with two replicas."""
    rank = distributed.get_rank()
    found = {
        "too few": refused(3, 1),
        "too few for replicas": refused(3, 2),
        "one stage": refused(1, 4),
    }
    world = joined("four", 2, 2)
    found["place"] = [world.stage, world.replica, world.name, world.is_main]
    found["places"] = world.names
    found["neighbours"] = [world.neighbour(1), world.neighbour(-1)]
    found["gathered"] = world.gather({"rank": rank, "text": "é" * 1000 * rank, "none": None})
    found["broadcast"] = broadcast(world)
    found["spread"] = spread(world)
    found["aligned"] = aligned(world)
    found["clock"] = world.clock_offset()
    found["sums"] = sums(world)
    done = []
    world.on_close(lambda: done.append("parted"))
    world.close()
    found["done"] = done
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    return 0


def broadcast(world):
    image = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    mine = (image, {"names": ["a", None], "empty": torch.zeros(0, 3)})
    values, others = world.broadcast(mine if world.leads else None)
    return [values.tolist(), values.stride(), others["names"], list(others["empty"].shape)]


def spread(world):
    tensors = [torch.full((2,), float(world.rank)), torch.zeros(0), torch.tensor(world.rank)]
    world.spread(tensors, source=2)
    return [tensor.tolist() for tensor in tensors]


def aligned(world):
    """Weights and statistics, some of them with gaps; every stage has its own."""
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    gaps = nn.Parameter(torch.zeros(4, 2)[:, ::2])
    network[0].register_parameter("gaps", gaps)
    with torch.no_grad():
        for value in network.state_dict().values():
            value.fill_(world.rank)
    world.align([network])
    return sorted({float(v) for t in network.state_dict().values() for v in t.flatten()})


def sums(world):
    """Gradients of parameters in buckets of several sizes and types, twice in a row."""
    gradient_sync.BUCKET_BYTES = 64  # sixteen numbers
    used = [nn.Parameter(torch.zeros(size)) for size in (4, 8, 20, 3)]
    used.append(nn.Parameter(torch.zeros(2, 2, dtype=torch.double)))
    idle = nn.Parameter(torch.zeros(5))
    parameters = [*used[:2], idle, *used[2:]]
    own = GradientSync(parameters, world, world.siblings)
    found = []
    for step in (1, 2):
        sum((step * (world.replica + 1) * p).sum() for p in used).backward()
        if world.replica:
            time.sleep(0.01)  # the order of arrival is no matter
        own.finish()
        found.append([None if p.grad is None else p.grad.tolist() for p in parameters])
        for parameter in parameters:
            parameter.grad = None
    return found
