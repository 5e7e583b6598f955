"""Packets rounded to bfloat16, so that half of the bytes or fewer cross an edge.

The rounding belongs to the method of training, wherever its stages run: in one process it is
done all the same, and equal bits come out. What is rounded so is sent in 16 bits.
"""

from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from hocket.relay.packet import Activation, Gradient
from hocket.tree import Tree, map_tensors

Sent = TypeVar("Sent", Activation, Gradient, contravariant=True)
Received = TypeVar("Received", covariant=True)


class Port(Protocol[Sent, Received]):
    """One side of an edge."""

    def send(self, packet: Sent) -> None:
        """Send a packet."""

    def receive(self, batch: int) -> Received:
        """The packet of a batch."""


class Rounded(Generic[Sent, Received]):
    """A port whose packets are rounded before they are sent; targets stay as they are."""

    def __init__(self, port: Port[Sent, Received]) -> None:
        self._port: Port[Sent, Received] = port

    def send(self, packet: Sent) -> None:
        """Send a packet with rounded values."""
        self._port.send(replace(packet, values=rounded(packet.values)))

    def receive(self, batch: int) -> Received:
        """The packet of a batch, which was rounded by its sender."""
        return self._port.receive(batch)


def rounded(tree: Tree) -> Tree:
    """Floating point numbers as they are in bfloat16, in their own type.

    >>> rounded((torch.tensor([1.001, 3.14159]), 7))
    (tensor([1.0000, 3.1406]), 7)
    """
    return map_tensors(_rounded, tree)


def _rounded(tensor: Tensor) -> Tensor:
    wide = tensor.dtype in (torch.float32, torch.float64)
    return tensor.to(torch.bfloat16).to(tensor.dtype) if wide else tensor
