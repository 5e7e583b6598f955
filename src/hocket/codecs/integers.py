"""Floating point numbers as integers of 8 bits and one scale."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.codecs.finite import require_finite
from hocket.codecs.stateless import StatelessCodec
from hocket.distributed.wire import parse_dtype
from hocket.tree import Tree

STEPS = 127


@dataclass(frozen=True)
class Integers(StatelessCodec):
    """Codec that rounds to 255 even steps, from minus the largest absolute value to plus it.

    The error of a number is at most half a step, and its rounding to the type of the tensor.

    >>> Integers().decode(Integers().encode(torch.tensor([-1.0, 0.1, 0.5])))
    tensor([-1.0000,  0.1024,  0.5039])
    """

    def encode(self, tensor: Tensor) -> Tree:
        """Return the integers, the size of a step, and the type of the tensor."""
        largest = tensor.abs().amax() if tensor.numel() else tensor.new_zeros(())
        wide = tensor.to(_wide_dtype(tensor.dtype, require_finite(largest)))
        limits = torch.finfo(wide.dtype)
        # Zeros have a step, too, and 127 steps do not overflow.
        step = (largest.to(wide.dtype) / STEPS).clamp(
            limits.tiny, limits.max / STEPS * (1 - limits.eps)
        )
        return [torch.round(wide / step).to(torch.int8), step, str(tensor.dtype)]

    def decode(self, encoded: Tree) -> Tensor:
        """Return the rounded numbers in the type and shape of the tensor."""
        integers, step, name = encoded
        assert isinstance(integers, Tensor)
        assert isinstance(step, Tensor)
        numbers = integers.to(step.dtype) * step
        return numbers.to(parse_dtype(name.removeprefix("torch.")))


def _wide_dtype(dtype: torch.dtype, largest: float) -> torch.dtype:
    """Return the type to compute in: types of 16 bits cannot hold the size of a step."""
    wide = torch.promote_types(dtype, torch.float32)
    return torch.float64 if 0 < largest < STEPS * torch.finfo(wide).tiny else wide
