"""Ports: all that a stage knows of its neighbours, one on each side."""

from abc import ABC, abstractmethod
from typing import Protocol, TypeAlias, TypeVar

from hocket.errors import PacketError
from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree

Sent = TypeVar("Sent", Activation, Gradient)
Received = TypeVar("Received", Activation, Gradient)
_Sent = TypeVar("_Sent", Activation, Gradient, contravariant=True)
_Received = TypeVar("_Received", Activation, Gradient, covariant=True)


class Port(Protocol[_Sent, _Received]):
    """One side of an edge: sends packets of one type and receives packets of the other."""

    def send(self, packet: _Sent) -> None:
        """Send a packet.

        Raises:
            PacketError: The packet of that batch was sent before.
        """

    def receive(self, batch: int) -> _Received:
        """Receive the packet of a batch.

        Raises:
            PacketError: It has not been sent, or was received before.
        """

    def state_dict(self) -> Tree:
        """Return the packets that were sent and not yet taken, as plain values."""

    def load_state_dict(self, state: Tree) -> None:
        """Send the packets of a state again."""


ToPrevious: TypeAlias = Port[Gradient, Activation]
"""Port to the stage, or the source, that a stage's inputs come from."""
ToNext: TypeAlias = Port[Activation, Gradient]
"""Port to the stage that a stage's outputs go to, or to the end of the network."""


class ForwardOnlyPort(ABC):
    """Common base of ports to the next stage that only send.

    They have no state: packets that were sent are dropped, or belong to the receiver's state.
    """

    receiver: str
    """Name of the receiver in error messages."""

    @abstractmethod
    def send(self, packet: Activation) -> None:
        """Send an activation."""

    def receive(self, batch: int) -> Gradient:
        """Refuse to wait for a gradient.

        Raises:
            PacketError: Always.
        """
        raise PacketError(
            f"a gradient of batch {batch} was expected, but {self.receiver} sends none"
        )

    def state_dict(self) -> Tree:
        """Return an empty state."""
        return []

    def load_state_dict(self, state: Tree) -> None:  # noqa: B027 (nothing to override)
        """Ignore the empty state."""
