"""Floating point numbers in 16 bits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.transport.codecs.codec import Codec, Decoder, Encoder
from hocket.tree import Tree


@dataclass(frozen=True)
class Cast:
    """Numbers rounded to a type; those that are in 16 bits already stay as they are.

    Args:
        dtype: ``torch.bfloat16`` or ``torch.float16``; of a number above 65,504 the latter
            makes infinity, which the training then refuses.

    >>> Cast(torch.bfloat16).decode(Cast(torch.bfloat16).encode(torch.tensor([1.001])))
    tensor([1.])
    """

    dtype: torch.dtype
    biases = False

    @property
    def gradients(self) -> Codec:
        """Rounded as well."""
        return self

    def encoder(self, seed: int, *, alone: bool = False) -> Encoder:
        """It has no state."""
        return self

    def decoder(self) -> Decoder:
        """It has no state."""
        return self

    def encode(self, tensor: Tensor) -> Tree:
        """The rounded numbers, and the type they had."""
        wide = tensor.dtype in (torch.float32, torch.float64)
        return [tensor.to(self.dtype) if wide else tensor, str(tensor.dtype)]

    def decode(self, coded: Tree) -> Tensor:
        """The rounded numbers in their own type."""
        narrow, name = coded
        assert isinstance(narrow, Tensor)
        return narrow.to(getattr(torch, name.removeprefix("torch.")))

    def state_dict(self) -> Tree:
        """Nothing."""

    def load_state_dict(self, state: Tree) -> None:
        """Nothing is to be put back."""
