"""The protocol of backends, which carry tensors to a neighbour and back."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

SendHandle: TypeAlias = Any
"""A send that has started; torch has no public type for it."""
Arrival: TypeAlias = Callable[[], Tensor]
"""Waits for a tensor whose receive was posted, and returns it."""


class Lane(IntEnum):
    """Part of a connection in which tensors keep their order.

    Tensors of one lane may overtake another lane's: a receive that is posted late must not take
    a tensor whose receive was posted before.
    """

    HEADER = 0
    EXPECTED = 1
    LATE = 2
    AFTER_NOTE = 3


class Backend(Protocol):
    """Sends dense tensors to one neighbour and receives them from it."""

    device: torch.device
    """Device on which tensors must be to be sent, and on which they arrive."""

    @property
    def headers(self) -> "Backend":
        """Backend between the same processes for headers, which are in the host's memory."""
        return self

    def send(self, tensor: Tensor, lane: Lane) -> SendHandle:
        """Start sending a non-empty tensor, which must stay unchanged until that is done."""

    def wait(self, handle: SendHandle) -> None:
        """Wait until a send is done; may be called in another thread.

        Raises:
            RuntimeError: The connection is lost.
        """

    def post(self, spec: Sequence[Any], lane: Lane) -> Arrival:
        """Post the receive of a tensor of the type, shape and strides of ``spec``."""

    def close(self, timeout_s: float) -> None:
        """Give back what sends and receives needed; the neighbour may take so long for it."""
        del timeout_s  # most backends hold nothing
