"""Backend between two processes of one machine, through memory that both have mapped.

The sender copies a tensor into a block of its memory, and the receiver copies it out. A note
that goes through gloo says which block it is. Gloo alone would copy the tensor into the kernel
and out of it, in small pieces and with more threads. It carries those for which no block can be
had.
"""

import mmap
import os
import platform
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from weakref import finalize

import torch
from torch import Tensor

from hocket.distributed import wire
from hocket.distributed.world.world import World
from hocket.errors import PacketError, TransitError, warn
from hocket.transport.processes.backend import Arrival, Backend, Lane, SendHandle

LEAST_BYTES = 2**16
"""Size of the smallest tensor that is sent in a block; smaller ones take no longer by gloo."""
NOTE = ["int64", [2], [1]]
"""Layout of a note: file descriptor and capacity of a block."""
ORDERED_PROCESSORS = ("x86_64", "amd64", "i386", "i686")
"""Processors that keep a write behind the reads before it.

The receiver copies a tensor out of a block, and then sets the flag that frees the block. On
other processors the sender might see the flag before the copy is done, so packets go by gloo.
"""
_FLAG_BYTES = mmap.PAGESIZE
"""Bytes before the tensor; the first one is not 0 until the tensor has been copied out."""
_NO_BLOCK = -1
"""File in the note of a tensor that follows by gloo."""
_NONCE_BYTES = 16
Address: TypeAlias = tuple[int, str, int, str]
"""Process, its network if known, file descriptor and content of memory that others look for."""
_POLL_S = 0.001
"""Seconds between two looks at blocks that are to become free."""


class SharedBlock:
    """Memory for one tensor at a time, of this process or of another one.

    Args:
        file: Path of its file, which is not needed afterwards.
        capacity: Number of bytes that it has room for.

    Raises:
        RuntimeError: There is no such file.
    """

    def __init__(self, file: str, capacity: int) -> None:
        self.capacity = capacity
        # Not by mmap, which keeps the file open. A block may be made in an evaluation.
        with torch.inference_mode(mode=False):
            memory = torch.from_file(
                file, shared=True, size=_FLAG_BYTES + capacity, dtype=torch.uint8, device="cpu"
            )
        self._flag = memory[:1].numpy()
        self._bytes = memory[_FLAG_BYTES:]

    @property
    def free(self) -> bool:
        """True if the tensor in it, if any, has been copied out."""
        return bool(self._flag[0] == 0)

    def put(self, tensor: Tensor) -> None:
        """Copy a dense tensor into the block, which must be free."""
        self._flag[0] = 1
        self._bytes[: tensor.nbytes].copy_(wire.tensor_bytes(tensor))

    def take(self, spec: Sequence[Any]) -> Tensor:
        """Copy the tensor of this type, shape and strides out of the block, and free it.

        Raises:
            TransitError: The block is too small for such a tensor.
        """
        tensor = wire.empty_tensor(spec)
        if tensor.nbytes > self.capacity:
            raise TransitError(
                f"a tensor of {tensor.nbytes} bytes is said to be in {self.capacity} bytes of "
                "shared memory"
            )
        wire.tensor_bytes(tensor).copy_(self._bytes[: tensor.nbytes])
        # Without a barrier, which Python has none for: see ORDERED_PROCESSORS.
        self._flag[0] = 0
        return tensor


class OwnBlock(SharedBlock):
    """Block of this process, with a file by which the neighbour finds it.

    Raises:
        OSError: No more files can be opened, or not of that length, or there is no memory.
        RuntimeError: It cannot be mapped.
    """

    def __init__(self, capacity: int) -> None:
        self.file = os.memfd_create("hocket")
        finalize(self, os.close, self.file)  # what is mapped of it stays valid
        # Memory that is never written takes no room.
        os.ftruncate(self.file, _FLAG_BYTES + capacity)
        super().__init__(_path(os.getpid(), self.file), capacity)


class SharedMemoryBackend(Backend):
    """Backend through blocks of shared memory, for two processes of one machine.

    gloo sends a note when the receiver has asked for it, and a connection begins few sends
    before that: so there are never more blocks than tensors on their way.

    Args:
        host: Backend between the same processes, for notes and for small tensors.
        process: Number of the neighbour's process, by which its files are found.
    """

    device = torch.device("cpu")

    def __init__(self, host: Backend, process: int) -> None:
        self._host = host
        self._process = process
        self._own: list[OwnBlock] = []
        self._of_neighbour: dict[int, SharedBlock] = {}
        self._warned = False

    def send(self, tensor: Tensor, lane: Lane) -> SendHandle:
        """Copy a tensor into a free block, and start sending a note of it."""
        size = tensor.nbytes
        if size < LEAST_BYTES:
            return self._send_all((tensor, lane))
        block = next((b for b in self._own if b.free and b.capacity >= size), None)
        if block is None:
            try:
                block = OwnBlock(1 << (size - 1).bit_length())
            except (OSError, RuntimeError) as error:
                if not self._warned:
                    warn(
                        f"there is no shared memory for {size} bytes of a packet ({error}); "
                        "they go through a socket, as others may, which takes longer; raise "
                        "the limits of this process (ulimit -f, -n, -v)"
                    )
                self._warned = True
                note = torch.tensor([_NO_BLOCK, 0], device="cpu")
                return self._send_all((note, lane), (tensor, Lane.AFTER_NOTE))
            self._own.append(block)
        block.put(tensor)
        return self._send_all((torch.tensor([block.file, block.capacity], device="cpu"), lane))

    def _send_all(self, *tensors: tuple[Tensor, Lane]) -> SendHandle:
        """Start sending tensors, and return them with the handles of their sends."""
        return [self._host.send(tensor, lane) for tensor, lane in tensors], tensors

    def wait(self, handle: SendHandle) -> None:
        """Wait until the note, and what goes by gloo, has been sent."""
        for each in handle[0]:
            self._host.wait(each)

    def post(self, spec: Sequence[Any], lane: Lane) -> Arrival:
        """Post the receive of a tensor of the type, shape and strides of ``spec``."""
        if wire.spec_bytes(spec) < LEAST_BYTES:
            return self._host.post(spec, lane)
        return partial(self._take, spec, self._host.post(NOTE, lane))

    def _take(self, spec: Sequence[Any], note: Arrival) -> Tensor:
        """Wait for a note and copy the tensor that it is about.

        Raises:
            TransitError: The tensor has no room where it is said to be.
            PacketError: This process may not have so much memory.
            RuntimeError: The process has ended.
        """
        # Read the note; without a block, the tensor follows it.
        file, capacity = note().tolist()
        if file == _NO_BLOCK:
            return self._host.post(spec, Lane.AFTER_NOTE)()

        # Map the block when it is used for the first time.
        if file not in self._of_neighbour:
            path = _path(self._process, file)
            try:
                self._of_neighbour[file] = SharedBlock(path, capacity)
            except RuntimeError as error:
                if not os.path.exists(path):
                    raise
                raise PacketError(
                    f"{capacity} bytes of shared memory, in which a packet has arrived, cannot "
                    f"be mapped ({error}); raise the limits of this process (ulimit -v), or "
                    "use smaller batches"
                ) from error
        return self._of_neighbour[file].take(spec)

    def close(self, timeout_s: float) -> None:
        """Give the memory back, once the neighbour has copied out all that was sent."""
        end_s = time.monotonic() + timeout_s
        while not all(block.free for block in self._own) and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        self._own.clear()
        self._of_neighbour.clear()


def _path(process: int, file: int) -> str:
    """Return the path by which a process of this user finds a file of another one."""
    return f"/proc/{process}/fd/{file}"


def find_shared(world: World) -> dict[int, int]:
    """Return the processes with which this one can share memory: their numbers by rank.

    All processes must call it, at the same time.
    """
    address = offer_memory()
    addresses = world.gather(address)
    here = [rank for rank, other in enumerate(addresses) if reaches(address, other)]
    reached = world.gather(here)
    if address is not None:
        os.close(address[2])
    return {
        rank: addresses[rank][0]
        for rank in here
        if rank != world.rank and world.rank in reached[rank]
    }


def offer_memory() -> Address | None:
    """Return the address of memory that other processes may look for.

    None if this system has no memory that could be shared, or its processor does not keep reads
    and writes in order.
    """
    if platform.machine().lower() not in ORDERED_PROCESSORS:
        return None
    try:
        file = os.memfd_create("hocket")
    except (AttributeError, OSError):  # not on this system, or forbidden in this container
        return None
    nonce = secrets.token_bytes(_NONCE_BYTES)
    os.write(file, nonce)
    network = ""
    with suppress(OSError):
        network = str(Path("/proc/self/ns/net").readlink())
    return os.getpid(), network, file, nonce.hex()


def reaches(own: Address | None, other: Sequence[Any] | None) -> bool:
    """Return True if this process, which has an address, can map the memory at another one.

    Not in another network: who put processes into different networks wants packets to go
    through the link between these.
    """
    if own is None or other is None or own[1] != other[1]:
        return False
    process, _, file, nonce = other
    # Not of this machine, or of another user.
    with suppress(OSError), open(_path(process, file), "rb") as found:
        return found.read(_NONCE_BYTES + 1).hex() == str(nonce)
    return False
