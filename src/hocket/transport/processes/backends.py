"""Backends that carry tensors to a neighbour: through gloo, or from GPU to GPU."""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

from hocket.distributed import wire
from hocket.distributed.world.membership import Group
from hocket.distributed.world.process_groups import NO_TIMEOUT, Edge
from hocket.distributed.world.world import World
from hocket.transport.processes.backend import Arrival, Backend, Lane, SendHandle
from hocket.transport.processes.shared_memory import SharedMemoryBackend, find_shared


class HostBackend(Backend):
    """Backend through gloo, for all devices and any number of processes.

    Args:
        group: Process group that sends and receives.
        rank: Rank of the neighbour in it.
    """

    device = torch.device("cpu")

    def __init__(self, group: Group, rank: int) -> None:
        self._group = group
        self._rank = rank

    def send(self, tensor: Tensor, lane: Lane) -> SendHandle:
        """Start sending a tensor."""
        # Not by isend, which refuses once the caller has destroyed all groups.
        return self._group.send([wire.tensor_bytes(tensor)], self._rank, lane)

    def wait(self, handle: SendHandle) -> None:
        """Wait until a send is done."""
        handle.wait(NO_TIMEOUT)

    def post(self, spec: Sequence[Any], lane: Lane) -> Arrival:
        """Post the receive of a tensor of the shape in ``spec`` into new memory."""
        tensor = wire.empty_tensor(spec)
        if not tensor.numel():
            return lambda: tensor
        work = self._group.recv([wire.tensor_bytes(tensor)], self._rank, lane)

        def arrive() -> Tensor:
            work.wait(NO_TIMEOUT)
            return tensor

        return arrive


class DirectBackend(Backend):
    """Backend from GPU to GPU, by NCCL, with a group for each direction.

    With two groups no direction waits for the other. A tensor follows its header, which goes
    through host memory, so that a receive starts only after its send has: none is posted
    ahead. The host waits for the arrival: tensors that arrive are complete.

    Args:
        device: GPU of this process, which no other process may use.
        rank: Rank of the neighbour.
        host: Backend for headers.
        send_group: Group of the direction to the neighbour.
        receive_group: Group of the direction from the neighbour.
    """

    def __init__(
        self,
        device: torch.device,
        rank: int,
        host: HostBackend,
        send_group: Group,
        receive_group: Group,
    ) -> None:
        self.device = device
        self._host = host
        self._send_group, self._receive_group = send_group, receive_group
        self._peer = distributed.get_group_rank(send_group, rank)
        cuda = device.type == "cuda"
        # Separate streams: waiting for a transfer must not delay computations.
        self._send_stream = torch.cuda.Stream(device) if cuda else None
        self._receive_stream = torch.cuda.Stream(device) if cuda else None

    @property
    def headers(self) -> Backend:
        """Backend for headers."""
        return self._host

    def send(self, tensor: Tensor, lane: Lane) -> SendHandle:
        """Start sending a tensor, after the work that is queued on the current stream."""
        del lane  # receives start in the order of the headers, and never before theirs
        return self._send_group.send([wire.tensor_bytes(tensor)], self._peer, 0)

    def wait(self, handle: SendHandle) -> None:
        """Block the host until a send is done."""
        with _synchronized_stream(self._send_stream):
            handle.wait()

    def post(self, spec: Sequence[Any], lane: Lane) -> Arrival:
        """Return the receive of a tensor of the shape in ``spec``, which has not started."""
        return partial(self._receive, spec)

    def _receive(self, spec: Sequence[Any]) -> Tensor:
        """Block the host until a tensor of the shape in ``spec`` has arrived."""
        with _synchronized_stream(self._receive_stream):
            tensor = wire.empty_tensor(spec, self.device)
            if tensor.numel():
                self._receive_group.recv([wire.tensor_bytes(tensor)], self._peer, 0).wait()
        if self._receive_stream is not None:
            # Its memory may be reused only after the stage's work on the default stream.
            tensor.record_stream(torch.cuda.default_stream(self.device))
        return tensor


@contextmanager
def _synchronized_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Context manager that makes a stream current and at the end waits for its work.

    Without a stream it does nothing.
    """
    if stream is None:
        yield
        return
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield
        stream.synchronize()


def gpu_backend_name(device: torch.device) -> str | None:
    """Return the torch backend between a GPU and another; None if the device has none."""
    return "nccl" if device.type == "cuda" and distributed.is_nccl_available() else None


class Backends:
    """Factory of a process's backends, one for each neighbour.

    All processes must construct it, at the same time.

    Args:
        device: Device on which this process computes.

    Attributes:
        gradient_group: Group in which replicas of a stage average gradients; None without
            replicas.
    """

    def __init__(self, world: World, device: torch.device) -> None:
        self._world = world
        self._device = device
        self._edges: dict[Edge, Group] = {}
        self._processes = find_shared(world)
        self.gradient_group: Group = world.replica_group
        name = gpu_backend_name(device)
        devices = world.gather([name, platform.node(), _device_id(device)])
        # All processes decide alike. NCCL refuses two processes on one GPU.
        without_gpu = any(entry[0] is None for entry in devices)
        if name is None or without_gpu or len({tuple(entry) for entry in devices}) < world.size:
            return
        self._edges, self.gradient_group = world.groups.form_direct(name)

    def for_peer(self, rank: int) -> Backend:
        """Build the backend for messages to a neighbour, and from it.

        It is direct if each has its own GPU, and through shared memory if both can.
        """
        here = self._world.rank
        host = HostBackend(self._world.groups.packets, rank)
        if (here, rank) in self._edges:
            groups = self._edges[here, rank], self._edges[rank, here]
            return DirectBackend(self._device, rank, host, *groups)
        if rank in self._processes:
            return SharedMemoryBackend(host, self._processes[rank])
        return host


def _device_id(device: torch.device) -> str:
    """Return a name that no other device of the machine has."""
    on_gpu = device.type == "cuda"
    return str(torch.cuda.get_device_properties(device).uuid if on_gpu else device)
