"""Edges inside one process: packets wait in a mailbox under the number of their batch.

Packets are not copied here; the receiving stage detaches or copies their tensors.
"""

from typing import Generic

from hocket.errors import PacketError
from hocket.transport.packet import Activation, Gradient
from hocket.transport.port import ForwardOnlyPort, Received, Sent
from hocket.tree import Tree, copy_tensors, tensors


class Mailbox(Generic[Sent]):
    """Packets of one type that cross one edge, each to be taken once.

    Args:
        name: Name of the packets in error messages.
        packet_type: Their type.
    """

    def __init__(self, name: str, packet_type: type[Sent]) -> None:
        self._name = name
        self._packet_type: type[Sent] = packet_type
        self._packets: dict[int, Sent] = {}

    def put(self, packet: Sent) -> None:
        """Add a packet.

        Raises:
            PacketError: The packet of that batch is there already.
        """
        if packet.batch in self._packets:
            raise PacketError(
                f"{self._name}: batch {packet.batch} was sent twice; "
                "the one before has not been received"
            )
        self._packets[packet.batch] = packet

    def take(self, batch: int) -> Sent:
        """Remove the packet of a batch and return it.

        Raises:
            PacketError: It is not there.
        """
        if batch not in self._packets:
            waiting = ", ".join(map(str, self._packets)) or "none"
            raise PacketError(
                f"{self._name}: batch {batch} was expected and is not there; waiting are "
                f"{waiting}"
            )
        return self._packets.pop(batch)

    def state_dict(self) -> Tree:
        """Return the packets that were not taken yet, as plain values."""
        return [vars(packet) for packet in self._packets.values()]

    def load_state_dict(self, state: Tree) -> None:
        """Add the packets of a state."""
        for packet in state:
            self.put(self._packet_type(**packet))


class MailboxPort(Generic[Sent, Received]):
    """One side of an edge.

    Args:
        outgoing: Mailbox for the packets that this side sends.
        incoming: Mailbox with the packets that the other side has sent.
    """

    def __init__(self, outgoing: Mailbox[Sent], incoming: Mailbox[Received]) -> None:
        self._outgoing: Mailbox[Sent] = outgoing
        self._incoming: Mailbox[Received] = incoming

    def send(self, packet: Sent) -> None:
        """Send a packet."""
        self._outgoing.put(packet)

    def receive(self, batch: int) -> Received:
        """Receive the packet of a batch."""
        return self._incoming.take(batch)

    def state_dict(self) -> Tree:
        """Return the packets that were sent and not yet taken, as plain values."""
        return self._outgoing.state_dict()

    def load_state_dict(self, state: Tree) -> None:
        """Send the packets of a state again."""
        self._outgoing.load_state_dict(state)


class Edge:
    """Edge between two stages, given by their names: activations go forward, gradients back."""

    def __init__(self, before: str, after: str) -> None:
        self.activations = Mailbox(f"activations from {before} to {after}", Activation)
        self.gradients = Mailbox(f"gradients from {after} to {before}", Gradient)

    def to_next(self) -> MailboxPort[Activation, Gradient]:
        """Build the port of the stage before the edge."""
        return MailboxPort(self.activations, self.gradients)

    def to_previous(self) -> MailboxPort[Gradient, Activation]:
        """Build the port of the stage after the edge."""
        return MailboxPort(self.gradients, self.activations)


class Source:
    """Previous stage of the first stage; sends batches and wants no gradients.

    Args:
        copies: Copy each batch, as the caller may fill the same memory with the next one.
    """

    def __init__(self, *, copies: bool = True) -> None:
        self._copies = copies
        self._edge = Edge("the source", "stage 0")

    def port(self) -> MailboxPort[Gradient, Activation]:
        """Build the port of the first stage."""
        return self._edge.to_previous()

    def send(
        self, batch: int, epoch: int, inputs: Tree, targets: Tree, share: float = 1.0
    ) -> Activation:
        """Send a batch to the first stage.

        Args:
            batch: Number of the batch, counted from 0 over all epochs.
            epoch: Number of its epoch, counted from 0.
            inputs: The inputs.
            targets: The targets.
            share: Fraction of the batch that these inputs are, where replicas divide it.

        Returns:
            The packet that was sent.
        """
        if self._copies:
            inputs, targets = copy_tensors((inputs, targets))
        packet = Activation(
            batch=batch,
            epoch=epoch,
            values=inputs,
            differentiable=(False,) * len(tensors(inputs)),
            targets=targets,
            share=share,
        )
        self._edge.activations.put(packet)
        return packet


class NoNextStage(ForwardOnlyPort):
    """Port of the last stage to the end of the network, which drops all outputs."""

    receiver = "the end of the network"

    def send(self, packet: Activation) -> None:
        """Drop the output of the network: the last stage has computed its loss already."""
