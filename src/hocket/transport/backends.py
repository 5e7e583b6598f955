"""How the tensors of a parcel travel: over the host for all devices, or from GPU to GPU."""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, distributed

from hocket.distributed import wire
from hocket.distributed.membership import Group
from hocket.distributed.world import NEVER, World

Work: TypeAlias = Any
"""A send on its way; torch names no public type for it."""


class Backend(Protocol):
    """Takes dense tensors to one neighbour and brings them from it."""

    device: torch.device
    """Where tensors are when they leave and when they arrive."""

    def send(self, tensor: Tensor) -> Work:
        """Send a tensor with elements; it must live on unchanged until that is finished."""

    def finish(self, work: Work) -> None:
        """Wait until a send is finished, in another thread; RuntimeError if the way is cut."""

    def receive(self, form: Sequence[Any]) -> Tensor:
        """Wait for a tensor of a form, in the thread that receives."""


class HostBackend:
    """Through the memory of the host, by gloo: for all devices and any number of them.

    Args:
        world: This process among the others.
        rank: The neighbour's, in the group.
        group: What the two have in common; that of all processes if not given.
    """

    device = torch.device("cpu")

    def __init__(self, world: World, rank: int, group: Group | None = None) -> None:
        self._group = group if group is not None else world.packets
        self._rank = rank

    def send(self, tensor: Tensor) -> Work:
        """Without isend, which refuses once the caller has destroyed all groups."""
        return self._group.send([wire.tensor_bytes(tensor)], self._rank, 0)

    def finish(self, work: Work) -> None:
        """Gloo's own wait."""
        work.wait(NEVER)

    def receive(self, form: Sequence[Any]) -> Tensor:
        """Into new memory."""
        room = wire.empty_tensor(form)
        if room.numel():
            self._group.recv([wire.tensor_bytes(room)], self._rank, 0).wait(NEVER)
        return room


class DirectBackend:
    """From GPU to GPU, by NCCL; each direction has a group, so that none waits for the other.

    Tensors follow a header over the host, so that a receive is only begun once its send has
    been. Where they arrive, the host waits: what a parcel holds is there.

    Args:
        device: Of this process, and of no other one.
        rank: The neighbour's.
        to: The group of the direction to the neighbour.
        back: That of the direction from it.
    """

    def __init__(self, device: torch.device, rank: int, to: Group, back: Group) -> None:
        self.device = device
        self._to, self._back = to, back
        self._peer = distributed.get_group_rank(to, rank)
        cuda = device.type == "cuda"
        # Waiting for what leaves or comes must not hold up what is computed meanwhile.
        self._leaving = torch.cuda.Stream(device) if cuda else None
        self._coming = torch.cuda.Stream(device) if cuda else None

    def send(self, tensor: Tensor) -> Work:
        """After what is queued on the present stream."""
        return self._to.send([wire.tensor_bytes(tensor)], self._peer, 0)

    def finish(self, work: Work) -> None:
        """On a stream of its own: that waits for the GPU's work, and the host for it."""
        with _aside(self._leaving):
            work.wait()

    def receive(self, form: Sequence[Any]) -> Tensor:
        """On a stream of its own."""
        with _aside(self._coming):
            room = wire.empty_tensor(form, self.device)
            if room.numel():
                self._back.recv([wire.tensor_bytes(room)], self._peer, 0).wait()
        if self._coming is not None:
            # Its memory may be used anew only after what the stages do with it.
            room.record_stream(torch.cuda.default_stream(self.device))
        return room


@contextmanager
def _aside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Inside, the work of a GPU is queued on this stream; at the end the host waits for it."""
    if stream is None:
        yield
        return
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield
        stream.synchronize()


def direct_backend_name(device: torch.device) -> str | None:
    """What takes tensors from this device to another without the host, if anything does."""
    return "nccl" if device.type == "cuda" and distributed.is_nccl_available() else None


class Backends:
    """Makes the carriers of a process; all processes must make one, at the same time.

    Args:
        world: This process among the others.
        device: Where it computes.
    """

    def __init__(self, world: World, device: torch.device) -> None:
        self._world = world
        self._device = device
        self._ways: dict[tuple[int, int], Group] = {}
        self.reductions: Group = world.siblings if world.replicas > 1 else None
        by = direct_backend_name(device)
        homes = world.gather([by, platform.node(), _identity(device)])
        # NCCL refuses two processes on one GPU.
        if by is None or len({tuple(home) for home in homes}) < world.size:
            return
        # Every process must make every group, whether it belongs to it or not.
        lines = [range(r, world.size, world.replicas) for r in range(world.replicas)]
        for above, below in (edge for line in lines for edge in pairwise(line)):
            for way in ((above, below), (below, above)):
                self._ways[way] = distributed.new_group(way, timeout=NEVER, backend=by)
        if world.replicas > 1:
            groups = [
                distributed.new_group(
                    range(k * world.replicas, (k + 1) * world.replicas),
                    timeout=timedelta(seconds=world.failures.timeout_s),
                    backend=by,
                )
                for k in range(world.stages)
            ]
            self.reductions = groups[world.stage]

    def to(self, rank: int) -> Backend:
        """What takes tensors to a neighbour and back: direct where there is a way."""
        own = self._world.rank
        if (own, rank) not in self._ways:
            return HostBackend(self._world, rank)
        return DirectBackend(self._device, rank, self._ways[own, rank], self._ways[rank, own])


def _identity(device: torch.device) -> str:
    """What tells a device from all others of its machine."""
    if device.type != "cuda":
        return str(device)
    return str(torch.cuda.get_device_properties(device).uuid)
