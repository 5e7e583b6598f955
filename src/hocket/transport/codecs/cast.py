"""Floating point numbers in 16 bits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.transport.codecs.stateless import StatelessCodec
from hocket.tree import Tree


@dataclass(frozen=True)
class Cast(StatelessCodec):
    """Codec that rounds numbers to a type of 16 bits; tensors of 16 bits stay as they are.

    Args:
        dtype: ``torch.bfloat16`` or ``torch.float16``. The latter turns numbers above 65,504
            into infinity, which the training then refuses.

    >>> Cast(torch.bfloat16).decode(Cast(torch.bfloat16).encode(torch.tensor([1.001])))
    tensor([1.])
    """

    dtype: torch.dtype

    def encode(self, tensor: Tensor) -> Tree:
        """Return the rounded numbers, and the type of the tensor."""
        wide = tensor.dtype in (torch.float32, torch.float64)
        return [tensor.to(self.dtype) if wide else tensor, str(tensor.dtype)]

    def decode(self, encoded: Tree) -> Tensor:
        """Return the rounded numbers in the type and shape of the tensor."""
        narrow, name = encoded
        assert isinstance(narrow, Tensor)
        return narrow.to(getattr(torch, name.removeprefix("torch.")))
