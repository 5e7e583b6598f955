"""Floating point numbers as integers of 8 bits and one scale."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.transport.codecs.codec import Codec, Decoder, Encoder
from hocket.transport.codecs.finite import require_finite
from hocket.tree import Tree

STEPS = 127


@dataclass(frozen=True)
class Integers:
    """Every number as the nearest of 255 even steps between the largest and its negative.

    >>> Integers().decode(Integers().encode(torch.tensor([-1.0, 0.1, 0.5])))
    tensor([-1.0000,  0.1024,  0.5039])
    """

    biases = False

    @property
    def gradients(self) -> Codec:
        """In the same way."""
        return self

    def encoder(self, seed: int, *, alone: bool = False) -> Encoder:
        """It has no state."""
        return self

    def decoder(self) -> Decoder:
        """It has no state."""
        return self

    def encode(self, tensor: Tensor) -> Tree:
        """The integers, the size of a step, and the type the numbers had."""
        largest = tensor.abs().amax() if tensor.numel() else tensor.new_zeros(())
        require_finite(largest)
        # Without numbers above zero any step will do.
        step = torch.where(largest > 0, largest / STEPS, 1.0).to(tensor.dtype)
        return [torch.round(tensor / step).to(torch.int8), step, str(tensor.dtype)]

    def decode(self, coded: Tree) -> Tensor:
        """The steps as numbers."""
        integers, step, name = coded
        assert isinstance(integers, Tensor)
        assert isinstance(step, Tensor)
        return integers.to(getattr(torch, name.removeprefix("torch."))) * step

    def state_dict(self) -> Tree:
        """Nothing."""

    def load_state_dict(self, state: Tree) -> None:
        """Nothing is to be put back."""
