"""Copies of batches to the device; the host does not wait for those to a GPU."""

import torch
from torch import Tensor

from hocket.errors import warn
from hocket.tree import Tree, map_tensors


class DetachOnce:
    """Detaches tensors of batches from graphs of autograd, with one warning.

    Losses of several stages cannot each go backward through it, and another process cannot at
    all.
    """

    def __init__(self) -> None:
        self._warned = False

    def __call__(self, value: Tensor) -> Tensor:
        """Return the same tensor (B, ...) without its graph."""
        if not self._warned:
            self._warned = True
            warn(
                "a batch has a tensor with a graph of autograd, through which no gradient "
                "flows back; make what computes the tensor a part of the network if it is to "
                "be trained, and call it under torch.no_grad() if it is not"
            )
        return value.detach()


class Upload:
    """Copies batches to a device.

    To a GPU they are copied out of pinned memory, in another stream: the copy of a batch
    overlaps with the computations that are queued, and only what uses the batch waits for it.

    Args:
        device: The device.
        detach_once: Detaches tensors that have a graph.
        channels_last: Give 4-dimensional tensors that memory format.
    """

    def __init__(
        self, device: torch.device, detach_once: DetachOnce, *, channels_last: bool
    ) -> None:
        self._device = device
        self._channels_last = channels_last
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._detach_once = detach_once

    def __call__(self, values: Tree) -> Tree:
        """Return values on the device, with tensors of shape (B, ...)."""
        return map_tensors(self._move, values)

    def to(self, device: torch.device) -> "Upload":
        """Return an upload to another device, which shares the warning."""
        return Upload(device, self._detach_once, channels_last=self._channels_last)

    def _move(self, value: Tensor) -> Tensor:
        if value.grad_fn is not None:
            value = self._detach_once(value)
        images = self._channels_last and value.dim() == 4
        if value.device == self._device and not images:
            return value
        memory_format = torch.channels_last if images else torch.preserve_format
        on_host = value.is_cpu and value.layout == torch.strided
        if self._stream is None or not on_host:
            moved = value.to(self._device)
            return moved.to(memory_format=memory_format) if images else moved
        # Copy out of pinned memory, in the stream of uploads.
        # A copy, as a loader may fill its memory again; PyTorch keeps it until it is read.
        pinned = torch.empty_like(value, memory_format=memory_format, pin_memory=True)
        pinned.copy_(value)
        user = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = pinned.to(self._device, non_blocking=True)
        user.wait_stream(self._stream)
        moved.record_stream(user)  # so that its memory is not reused before that is done
        return moved
