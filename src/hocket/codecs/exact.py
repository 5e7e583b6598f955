"""Tensors as they are."""

from dataclasses import dataclass

from torch import Tensor

from hocket.codecs.stateless import StatelessCodec
from hocket.tree import Tree


@dataclass(frozen=True)
class Exact(StatelessCodec):
    """Codec that changes nothing."""

    def encode(self, tensor: Tensor) -> Tree:
        """Return the tensor itself."""
        return tensor

    def decode(self, encoded: Tree) -> Tensor:
        """Return the tensor itself, with its shape."""
        assert isinstance(encoded, Tensor)
        return encoded
