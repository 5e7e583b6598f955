"""Edges inside one process: packets wait in a mailbox under their batch's number.

Nothing is copied here; the receiving stage makes what it gets its own.
"""

from typing import Generic, Protocol, TypeVar

from hocket.errors import PacketError
from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree


class _Numbered(Protocol):
    @property
    def batch(self) -> int: ...


P = TypeVar("P", bound=_Numbered)


class Mailbox(Generic[P]):
    """Packets of one kind at one edge, each to be taken once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._packets: dict[int, P] = {}

    def __len__(self) -> int:
        return len(self._packets)

    def packets(self) -> list[P]:
        """Those that wait to be taken."""
        return list(self._packets.values())

    def put(self, packet: P) -> None:
        """Leave a packet; a second one of the same batch raises PacketError."""
        if packet.batch in self._packets:
            raise PacketError(
                f"{self._what}: batch {packet.batch} was sent twice; "
                "the one before has not been received"
            )
        self._packets[packet.batch] = packet

    def take(self, batch: int) -> P:
        """Take the packet of a batch; PacketError if it is not there."""
        if batch not in self._packets:
            waiting = ", ".join(map(str, self._packets)) or "none"
            raise PacketError(
                f"{self._what}: batch {batch} was expected and is not there; waiting are "
                f"{waiting}"
            )
        return self._packets.pop(batch)


class Edge:
    """The border between two stages: activations ahead, gradients back."""

    def __init__(self, before: str, after: str) -> None:
        self.activations: Mailbox[Activation] = Mailbox(f"activations from {before} to {after}")
        self.gradients: Mailbox[Gradient] = Mailbox(f"gradients from {after} to {before}")

    def to_next(self) -> "MailboxToNext":
        """The port of the stage whose outputs cross the edge."""
        return MailboxToNext(self)

    def to_previous(self) -> "MailboxToPrevious":
        """The port of the stage whose inputs cross the edge."""
        return MailboxToPrevious(self)


class MailboxToNext:
    """What the stage above an edge sees: it sends activations and receives gradients."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def send(self, packet: Activation) -> None:
        """Send an activation ahead."""
        self._edge.activations.put(packet)

    def receive(self, batch: int) -> Gradient:
        """The gradient of a batch."""
        return self._edge.gradients.take(batch)

    def state_dict(self) -> Tree:
        """The activations that were sent and not yet taken."""
        return [vars(packet) for packet in self._edge.activations.packets()]

    def load_state_dict(self, state: Tree) -> None:
        """Send them."""
        for packet in state:
            self.send(Activation(**packet))


class MailboxToPrevious:
    """What the stage below an edge sees: it receives activations and sends gradients."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def receive(self, batch: int) -> Activation:
        """The activation of a batch."""
        return self._edge.activations.take(batch)

    def send(self, packet: Gradient) -> None:
        """Send a gradient back."""
        self._edge.gradients.put(packet)

    def state_dict(self) -> Tree:
        """The gradients that were sent and not yet taken."""
        return [vars(packet) for packet in self._edge.gradients.packets()]

    def load_state_dict(self, state: Tree) -> None:
        """Send them."""
        for packet in state:
            self.send(Gradient(**packet))


class NoNextStage:
    """Behind the last stage: outputs are dropped, and no gradient ever comes."""

    def send(self, packet: Activation) -> None:
        """Drop the output of the network; its loss has been taken by the last stage."""

    def receive(self, batch: int) -> Gradient:
        """There is nothing to receive: PacketError."""
        raise PacketError(f"a gradient of batch {batch} was expected from behind the network")

    def state_dict(self) -> Tree:
        """Nothing is under way."""
        return []

    def load_state_dict(self, state: Tree) -> None:
        """Nothing was under way."""
