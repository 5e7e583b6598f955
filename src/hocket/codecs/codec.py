"""Codec: a choice of how tensors are encoded, which builds encoders and decoders."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from hocket.tree import Tree


class Stateful(Protocol):
    """Something that learns, or that remembers what it has seen."""

    def state_dict(self) -> Tree:
        """Return all that it has learned or remembers, as plain values."""

    def load_state_dict(self, state: Tree) -> None:
        """Continue from the state of another one."""


class Encoder(Stateful, Protocol):
    """Encodes the tensors that one sender sends over one edge; it may learn from them."""

    def encode(self, tensor: Tensor) -> Tree:
        """Return codes of a floating point tensor in a list or a dict, or the tensor itself.

        Raises:
            NonFiniteError: The tensor has a value that cannot be encoded.
            OptionError: The codec does not fit the tensor.
        """


class Decoder(Stateful, Protocol):
    """Decodes what one encoder has encoded, in the same order."""

    def decode(self, encoded: Tree) -> Tensor:
        """Return a tensor of the shape, type and memory format of the one that was encoded.

        Raises:
            PacketError: An earlier packet is needed and did not arrive.
        """


@runtime_checkable
class Codec(Protocol):
    """Choice of how tensors are encoded; a value without state."""

    @property
    def gradients(self) -> "Codec":
        """Codec for the gradients that come back."""

    @property
    def biases_gradients(self) -> bool:
        """True if a gradient at the decoded values is a biased one at the encoded values."""

    def encoder(self, seed: int, *, self_contained: bool = False) -> Encoder:
        """Build an encoder; equal seeds and equal tensors give equal codes.

        Args:
            seed: Seed of encoders that draw random numbers.
            self_contained: Whether each packet must be readable without those before it.
        """

    def decoder(self) -> Decoder:
        """Build the decoder for a new encoder."""
