"""Floating point numbers in 16 bits."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.codecs.finite import require_finite
from hocket.codecs.stateless import StatelessCodec
from hocket.distributed.wire import parse_dtype
from hocket.tree import Tree


@dataclass(frozen=True)
class Cast(StatelessCodec):
    """Codec that rounds numbers to a type of 16 bits; tensors of 16 bits stay as they are.

    Args:
        dtype: ``torch.bfloat16`` or ``torch.float16``. Larger numbers than it holds, above
            3.39e38 and 65,504, become infinite, which the training then refuses.

    >>> Cast(torch.bfloat16).decode(Cast(torch.bfloat16).encode(torch.tensor([1.001])))
    tensor([1.])
    """

    dtype: torch.dtype

    def encode(self, tensor: Tensor) -> Tree:
        """Return the rounded numbers, and the type of the tensor."""
        wide = tensor.dtype in (torch.float32, torch.float64)
        if wide and tensor.numel():
            require_finite(torch.linalg.vector_norm(tensor, math.inf))
        return [tensor.to(self.dtype) if wide else tensor, str(tensor.dtype)]

    def decode(self, encoded: Tree) -> Tensor:
        """Return the rounded numbers in the type and shape of the tensor."""
        narrow, name = encoded
        assert isinstance(narrow, Tensor)
        return narrow.to(parse_dtype(name.removeprefix("torch.")))
