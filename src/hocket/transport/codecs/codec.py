"""What a codec is: a choice that makes encoders for senders and decoders for receivers."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hocket.tree import Tree


class Encoder(Protocol):
    """Writes what one sender sends over one edge; it may learn from it."""

    def encode(self, tensor: Tensor) -> Tree:
        """What travels in the place of a floating point tensor.

        Raises:
            NonFiniteError: It has a value that cannot be written.
            OptionError: The codec does not fit the tensor.
        """

    def state_dict(self) -> Tree:
        """All that it has learnt, as plain values, for another one to go on from."""

    def load_state_dict(self, state: Tree) -> None:
        """Go on from what another encoder had learnt."""


class Decoder(Protocol):
    """Reads what one encoder has written, in the order in which it was written."""

    def decode(self, coded: Tree) -> Tensor:
        """A tensor of the shape, type and memory format of the one that was encoded.

        Raises:
            PacketError: What has come before is needed, and did not come.
        """

    def state_dict(self) -> Tree:
        """All that it remembers, as plain values, for another one to go on from."""

    def load_state_dict(self, state: Tree) -> None:
        """Go on from what another decoder remembered."""


class Codec(Protocol):
    """How tensors are written; a value without state."""

    @property
    def gradients(self) -> "Codec":
        """How gradients that come back are written."""

    @property
    def biases(self) -> bool:
        """Whether a gradient at what was decoded is none at what was encoded."""

    def encoder(self, seed: int, *, alone: bool = False) -> Encoder:
        """A new encoder; equal seeds and equal tensors give equal codes.

        Args:
            seed: For encoders that draw.
            alone: Whether each packet can be read without those before it, which may be lost.
        """

    def decoder(self) -> Decoder:
        """The decoder of a new encoder."""


@dataclass(frozen=True)
class Exact:
    """Tensors as they are."""

    biases = False

    @property
    def gradients(self) -> Codec:
        """Exact as well."""
        return self

    def encoder(self, seed: int, *, alone: bool = False) -> Encoder:
        """One that changes nothing."""
        return self

    def decoder(self) -> Decoder:
        """One that changes nothing."""
        return self

    def encode(self, tensor: Tensor) -> Tree:
        """The tensor."""
        return tensor

    def decode(self, coded: Tree) -> Tensor:
        """The tensor."""
        assert isinstance(coded, Tensor)
        return coded

    def state_dict(self) -> Tree:
        """Nothing."""

    def load_state_dict(self, state: Tree) -> None:
        """Nothing is to be put back."""
