"""What the contract of ports asks of every relay: both ends, and packets to go between them.

Run by both ends in turn in one process, or by each end in a process of its own.
"""

import json
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import distributed
from torch.distributed import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store

from benchmarks.faults.packets import damaged, mislabelled
from hocket.distributed.world import World
from hocket.errors import HangError, PacketError
from hocket.timeline import Recorder
from hocket.transport.connection import (
    Connection,
    ConnectionToNext,
    ConnectionToPrevious,
    Lookahead,
    OutgoingMessage,
)
from hocket.transport.mailbox import Edge
from hocket.transport.packet import Activation, Gradient
from hocket.tree import tensors

ROOM = 4


def activation(batch):
    """A packet with everything that may differ from batch to batch."""
    make = torch.Generator().manual_seed(batch)
    image = torch.randn(2, 3, 4, 5, generator=make)
    return Activation(
        batch=batch,
        epoch=batch // 2,
        values=(image.contiguous(memory_format=torch.channels_last), {"mask": image[0, 0] > 0}),
        differentiable=(True, False),
        targets=[torch.arange(batch), None, 0.5],
        share=1 / (batch + 1),
    )


def gradient(batch):
    make = torch.Generator().manual_seed(batch)
    return Gradient(batch, (torch.randn(3, 2, generator=make).T, None))


def said(packet):
    """All that a packet says, to be compared."""
    if isinstance(packet, Gradient):
        return [packet.batch, str(packet.values), bits(packet.values)]
    own = [packet.batch, packet.epoch, packet.share, list(packet.differentiable)]
    return [*own, str(packet.values), bits((packet.values, packet.targets))]


def bits(tree):
    return [[str(t.dtype), list(t.shape), list(t.stride()), t.tolist()] for t in tensors(tree)]


def sends(packet, *batches):
    return lambda port: [port.send(packet(batch)) for batch in batches] and None


def receives(*batches):
    return lambda port: [said(port.receive(batch)) for batch in batches]


def refusal(*batches):
    def attempt(port):
        try:
            receives(*batches)(port)
        except PacketError as error:
            return str(error)

    return attempt


# Which end does what, in an order that waits for nothing that comes later.
STEPS = {
    "activations leave": (0, sends(activation, 0, 1, 2)),
    "in order": (1, receives(0, 1, 2)),
    "gradients leave": (1, sends(gradient, 0, 1, 2)),
    "gradients in another order": (0, receives(2, 0, 1)),
    "more activations leave": (0, sends(activation, 3, 4, 5)),
    "in another order": (1, receives(5, 3, 4)),
    "all there is room for": (0, sends(activation, 6, 7, 8, 9)),
    "once only": (1, refusal(3)),
    "afterwards": (1, receives(9, 6, 7, 8)),
    "the last gradients leave": (1, sends(gradient, 3)),
    "the last gradients": (0, receives(3)),
}


def in_memory():
    """What both ends of an edge inside this process find."""
    edge = Edge("stage 0", "stage 1")
    ends = edge.to_next(), edge.to_previous()
    return {name: step(ends[side]) for name, (side, step) in STEPS.items()}


# What becomes of one packet on its way, and whether tensors have checksums.
WRONG = {
    "damaged": (lambda own: [damaged(own)], True),
    "damaged unseen": (lambda own: [damaged(own)], False),
    "damaged header": (lambda own: [damaged(own, part=0, bit=5000)], False),
    "damaged length": (lambda own: [damaged(own, part=0, bit=40)], False),
    "lost": (lambda own: [], True),
    "sent again": (lambda own: [own, own], True),
    "under a later number": (lambda own: [mislabelled(own, own.number + 1)], True),
    "under an earlier number": (lambda own: [mislabelled(own, own.number - 1)], True),
}


@contextmanager
def going_wrong(change, number):
    """Inside, the activation of this number is changed on its way."""
    own = OutgoingMessage.begin

    def begin(shipment):
        wrong = (shipment.kind, shipment.number) == ("activation", number)
        finishes = [own(one) for one in (change(shipment) if wrong else [shipment])]
        return lambda: [finish() for finish in finishes] and None

    with patch.object(OutgoingMessage, "begin", begin):
        yield


def connected(world, room=ROOM, checksum=True):
    """This process's end of a connection, and the connection."""
    device = torch.device("cpu")
    connection = Connection(world, 1 - world.rank, room, device, checksum=checksum)
    end = (ConnectionToNext, ConnectionToPrevious)[world.rank]
    return end(connection, Lookahead(), Recorder(world.rank, keep=False)), connection


def in_a_process(folder):
    """What this process's end finds; written to a file."""
    rank = distributed.get_rank()

    def joined(name, timeout_s):
        return World(2, 1, timeout_s, PrefixStore(name, _get_default_store()))

    world = joined("quiet", 20.0)
    port, connection = connected(world)
    found = {name: step(port) for name, (side, step) in STEPS.items() if side == rank}
    connection.close()
    found["sent"], found["received"] = connection.sent_bytes, connection.received_bytes

    port, connection = connected(joined("doubled", 20.0))
    if rank == 0:
        sends(activation, 3, 3)(port)
    else:
        found["doubled"] = refusal(4)(port)
    distributed.barrier()

    for name, (change, checksum) in WRONG.items():
        port, connection = connected(joined(name, 20.0), checksum=checksum)
        if rank == 0:
            with going_wrong(change, 1):
                sends(activation, 0, 1, 2)(port)
        else:
            found[name] = refusal(0, 1, 2)(port)
        distributed.barrier()

    port, connection = connected(joined("flooded", 1.0), room=2)
    if rank == 0:
        taken = 0
        try:
            while True:
                port.send(activation(taken))
                taken += 1
        except HangError as error:
            found["flooded"], found["hang"] = taken, str(error)
    distributed.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    return 0
