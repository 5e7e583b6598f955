"""Steps of the contract of ports: packets that both ends of an edge send and receive.

They are run by both ends in turn in one process, or by each end in a process of its own.
"""

from contextlib import contextmanager
from functools import cache, partial
from unittest.mock import patch

import torch
from torch import distributed
from torch.distributed import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store

from benchmarks.faults.packets import damage_packet, relabel_packet
from contract.crossing import TENSORS, TREES
from contract.processes import in_processes
from hocket.distributed.failures.phases import TimeLimits
from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.world.world import World
from hocket.errors import HangError, PacketError
from hocket.stage.passes.edges import to_outgoing
from hocket.timeline import Recorder
from hocket.transport.mailbox import Edge
from hocket.transport.packet import Activation, Gradient
from hocket.transport.processes import shared_memory
from hocket.transport.processes.backends import Backends, HostBackend
from hocket.transport.processes.connection import Connection
from hocket.transport.processes.connection_ports import ConnectionPort, Lookahead
from hocket.transport.processes.message import OutgoingMessage
from hocket.transport.processes.shared_memory import SharedMemoryBackend
from hocket.tree import tensors

CAPACITY = 4
CONNECTIONS = ["gloo", "shared memory"]


def activation(batch):
    """Build a packet in which everything differs from batch to batch."""
    generator = torch.Generator().manual_seed(batch)
    image = torch.randn(2, 3, 4, 5, generator=generator)
    return Activation(
        batch=batch,
        epoch=batch // 2,
        values=(image.contiguous(memory_format=torch.channels_last), {"mask": image[0, 0] > 0}),
        differentiable=(True, False),
        targets=[torch.arange(batch), None, 0.5],
        share=1 / (batch + 1),
    )


def gradient(batch):
    generator = torch.Generator().manual_seed(batch)
    return Gradient(batch, (torch.randn(3, 2, generator=generator).T, None))


def contents(packet):
    """Return all that a packet holds, to be compared."""
    if isinstance(packet, Gradient):
        return [packet.batch, describe(packet.values)]
    fields = [packet.batch, packet.epoch, packet.share, packet.differentiable]
    return [*fields, describe((packet.values, packet.targets))]


def describe(tree):
    """Return all that a receiver may see of a tree, tensors with the strides of a copy."""
    if isinstance(tree, torch.Tensor):
        dense = tree.detach().resolve_conj().resolve_neg().clone()
        data = dense.contiguous().flatten().view(torch.uint8).tolist()
        return [str(tree.dtype), list(dense.shape), list(dense.stride()), data]
    if isinstance(tree, dict):
        return {"dict": [[repr(key), describe(item)] for key, item in tree.items()]}
    if isinstance(tree, tuple | list):
        return {type(tree).__name__: [describe(item) for item in tree]}
    return repr(tree)


def cross(to_next, to_previous):
    """Send every value over an edge, or receive it; return what arrives, by direction.

    A port is None in a process without its stage.
    """
    arrived = {"activation": {}, "gradient": {}}
    for batch, (name, value) in enumerate((TENSORS | TREES).items()):
        if to_next is not None:
            flags = (False,) * max(1, len(tensors(value)))
            flags = flags if value is None or tensors(value) else ()
            values, targets = to_outgoing((value, value), [])
            to_next.send(Activation(batch, 0, values, flags, targets))
        if to_previous is not None:
            packet = to_previous.receive(batch)
            assert describe(packet.values) == describe(packet.targets)
            arrived["activation"][name] = describe(packet.values)
    for batch, (name, value) in enumerate(TENSORS.items()):
        if to_previous is not None:
            to_previous.send(Gradient(batch, to_outgoing((None, value), [])))
        if to_next is not None:
            nothing, gradient = to_next.receive(batch).values
            assert nothing is None
            arrived["gradient"][name] = describe(gradient)
    return arrived


def crossed_in_memory():
    """Send every value over an edge of this process; return what arrives."""
    edge = Edge("stage 0", "stage 1")
    return cross(edge.to_next(), edge.to_previous())


def sends(packet, *batches):
    return lambda port: [port.send(packet(batch)) for batch in batches] and None


def receives(*batches):
    return lambda port: [contents(port.receive(batch)) for batch in batches]


def refusal(*batches):
    def attempt(port):
        try:
            receives(*batches)(port)
        except PacketError as error:
            return str(error)

    return attempt


# The end (0 or 1) of each step; no step waits for a later one.
STEPS = {
    "activations leave": (0, sends(activation, 0, 1, 2)),
    "in order": (1, receives(0, 1, 2)),
    "gradients leave": (1, sends(gradient, 0, 1, 2)),
    "gradients in another order": (0, receives(2, 0, 1)),
    "more activations leave": (0, sends(activation, 3, 4, 5)),
    "in another order": (1, receives(5, 3, 4)),
    "as many as there is room for": (0, sends(activation, 6, 7, 8, 9)),
    "once only": (1, refusal(3)),
    "afterwards": (1, receives(9, 6, 7, 8)),
    "the last gradients leave": (1, sends(gradient, 3)),
    "the last gradients": (0, receives(3)),
}


def in_memory():
    """Run both ends of an edge in this process; return the result of each step."""
    edge = Edge("stage 0", "stage 1")
    ends = edge.to_next(), edge.to_previous()
    return {name: step(ends[side]) for name, (side, step) in STEPS.items()}


# Changes of one packet in transit, and whether tensors have checksums.
WRONG = {
    "damaged": (lambda sent: [damage_packet(sent)], True),
    "damaged without checksums": (lambda sent: [damage_packet(sent)], False),
    "damaged header": (lambda sent: [damage_packet(sent, part=0, bit=5000)], False),
    "damaged length": (lambda sent: [damage_packet(sent, part=0, bit=40)], False),
    "lost": (lambda sent: [], True),
    "sent again": (lambda sent: [sent, sent], True),
    "under a later number": (lambda sent: [relabel_packet(sent, sent.number + 1)], True),
    "under an earlier number": (lambda sent: [relabel_packet(sent, sent.number - 1)], True),
}


@contextmanager
def changing(change, number):
    """Context manager that changes the activation of this number in transit."""
    original = OutgoingMessage.begin

    def begin(message):
        chosen = (message.kind, message.number) == ("activation", number)
        waits = [original(one) for one in (change(message) if chosen else [message])]
        return lambda: [wait() for wait in waits] and None

    with patch.object(OutgoingMessage, "begin", begin):
        yield


def connect(world, transport, capacity=CAPACITY, checksum=True):
    """Build this process's end of a connection; return it and the connection."""
    device, rank = torch.device("cpu"), 1 - world.rank
    backend = HostBackend(world.groups.packets, rank)
    if transport == "shared memory":
        backend = Backends(world, device).for_peer(rank)
        assert isinstance(backend, SharedMemoryBackend)
    connection = Connection(world, rank, capacity, device, backend, checksum=checksum)
    types = ((Activation, Gradient), (Gradient, Activation))[world.rank]
    recorder = Recorder(world.rank, keep=False)
    return ConnectionPort(*types, connection, Lookahead(), recorder, 0), connection


def in_a_process(transport):
    """Run the steps of this process's end; return the results."""
    with patch.object(shared_memory, "LEAST_BYTES", 1):  # the packets here are small
        return run_steps(partial(connect, transport=transport))


def run_steps(connect):
    """Run the steps of this process's end over connections from this function."""
    rank = distributed.get_rank()

    def build_world(name, timeout_s):
        store = PrefixStore(name, _get_default_store())
        limits, identity = TimeLimits(timeout_s, timeout_s), ProcessIdentity(rank, 2, store)
        return World(2, 1, limits, store, identity)

    world = build_world("unchanged", 60.0)
    port, connection = connect(world)
    results = {name: step(port) for name, (side, step) in STEPS.items() if side == rank}
    connection.begin_close()
    results["quiet"] = connection.finish_close(60.0)
    results["sent"] = connection.sent_bytes

    port, connection = connect(build_world("crossed", 60.0))
    arrived = cross(port, None) if rank == 0 else cross(None, port)
    results["crossed"] = arrived["gradient" if rank == 0 else "activation"]
    connection.begin_close()
    connection.finish_close(60.0)

    port, connection = connect(build_world("repeated", 60.0))
    if rank == 0:
        sends(activation, 3, 3)(port)
    else:
        results["repeated"] = refusal(4)(port)
    distributed.barrier()

    for name, (change, checksum) in WRONG.items():
        port, connection = connect(build_world(name, 60.0), checksum=checksum)
        if rank == 0:
            with changing(change, 1):
                sends(activation, 0, 1, 2)(port)
        else:
            results[name] = refusal(0, 1, 2)(port)
        distributed.barrier()

    port, connection = connect(build_world("flooded", 5.0), capacity=2)
    if rank == 0:
        taken = 0
        try:
            while True:
                port.send(activation(taken))
                taken += 1
        except HangError as error:
            results["flooded"], results["hang"] = taken, str(error)
    distributed.barrier()
    return results


@cache
def in_two_processes(transport):
    """Run each end in a process of its own, once for all tests; return the results by rank."""
    return in_processes(in_a_process, transport, processes=2)
