"""Codecs that learn nothing."""

from abc import ABC, abstractmethod

from torch import Tensor

from hocket.codecs.codec import Codec, Decoder, Encoder
from hocket.tree import Tree


class StatelessCodec(ABC):
    """Common base of codecs without state: each is its own encoder and decoder.

    Gradients are encoded in the same way.
    """

    biases_gradients = False

    @property
    def gradients(self) -> Codec:
        """The codec itself."""
        return self

    def encoder(self, seed: int, *, self_contained: bool = False) -> Encoder:
        """Return the codec itself."""
        return self

    def decoder(self) -> Decoder:
        """Return the codec itself."""
        return self

    @abstractmethod
    def encode(self, tensor: Tensor) -> Tree:
        """Return what is sent in place of a floating point tensor."""

    @abstractmethod
    def decode(self, encoded: Tree) -> Tensor:
        """Return a tensor of the shape, type and memory format of the one that was encoded."""

    def state_dict(self) -> Tree:
        """Return None: there is no state."""
        return None

    def load_state_dict(self, state: Tree) -> None:  # noqa: B027 (nothing to override)
        """Do nothing: there is no state."""
