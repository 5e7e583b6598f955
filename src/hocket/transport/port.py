"""What a stage knows of its neighbours: two ports, one on each side."""

from typing import Protocol

from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree


class ToPrevious(Protocol):
    """The side that a stage's inputs come from: the stage before, or the source."""

    def receive(self, batch: int) -> Activation:
        """The activation of a batch.

        Raises:
            PacketError: It has not been sent, or was received before.
        """

    def send(self, packet: Gradient) -> None:
        """Send a gradient back.

        Raises:
            PacketError: That batch's gradient was sent before.
        """

    def state_dict(self) -> Tree:
        """The gradients that were sent and not yet taken, as plain values."""

    def load_state_dict(self, state: Tree) -> None:
        """Send again what had been sent and not yet taken when the state was."""


class ToNext(Protocol):
    """The side that a stage's outputs go to: the stage behind, or the end of the network."""

    def receive(self, batch: int) -> Gradient:
        """The gradient of a batch.

        Raises:
            PacketError: It has not been sent, or was received before.
        """

    def send(self, packet: Activation) -> None:
        """Send an activation ahead.

        Raises:
            PacketError: That batch's activation was sent before.
        """

    def state_dict(self) -> Tree:
        """The activations that were sent and not yet taken, as plain values."""

    def load_state_dict(self, state: Tree) -> None:
        """Send again what had been sent and not yet taken when the state was."""
