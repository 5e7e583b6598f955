"""Floating point numbers as integers of 8 bits and one scale."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.transport.codecs.finite import require_finite
from hocket.transport.codecs.stateless import StatelessCodec
from hocket.tree import Tree

STEPS = 127


@dataclass(frozen=True)
class Integers(StatelessCodec):
    """Codec that rounds to 255 even steps, from minus the largest absolute value to plus it.

    >>> Integers().decode(Integers().encode(torch.tensor([-1.0, 0.1, 0.5])))
    tensor([-1.0000,  0.1024,  0.5039])
    """

    def encode(self, tensor: Tensor) -> Tree:
        """Return the integers, the size of a step, and the type of the tensor."""
        largest = tensor.abs().amax() if tensor.numel() else tensor.new_zeros(())
        require_finite(largest)
        # For zeros any step will do.
        step = torch.where(largest > 0, largest / STEPS, 1.0).to(tensor.dtype)
        return [torch.round(tensor / step).to(torch.int8), step, str(tensor.dtype)]

    def decode(self, encoded: Tree) -> Tensor:
        """Return the rounded numbers in the type and shape of the tensor."""
        integers, step, name = encoded
        assert isinstance(integers, Tensor)
        assert isinstance(step, Tensor)
        return integers.to(getattr(torch, name.removeprefix("torch."))) * step
