"""Ports through which activations leave and no gradient comes back."""

from abc import ABC, abstractmethod

from hocket.errors import PacketError
from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree


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
