"""Ports of a stage whose neighbours are in other processes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from hocket.timeline import Recorder
from hocket.transport.port import Received, Sent
from hocket.transport.processes.connection import Connection
from hocket.tree import Tree


@dataclass
class Lookahead:
    """Tick of a stage, and how far ahead its batches are certain.

    The first stage reads ahead in the data and sends ``end_batch`` with every packet, so that
    each stage trains without asking, and all stop after the same batch. Packets on their way
    back repeat what their receiver knows.

    Attributes:
        count_ticks: Returns the number of ticks begun.
        end_batch: First batch that is not certain to enter.
    """

    count_ticks: Callable[[], int] = lambda: 1
    end_batch: int = 0

    @property
    def tick(self) -> int:
        """The tick that the stage is executing, or that it has executed last."""
        return self.count_ticks() - 1


@dataclass(eq=False)
class ConnectionPort(Generic[Sent, Received]):
    """Port to the stage in another process to which a connection leads.

    Args:
        sent: Type of the packets that it sends.
        received: Type of the packets that it receives.
        connection: The connection to the neighbour.
        lookahead: The current tick, and how far ahead batches are certain.
        recorder: Records the time of sends and of waits.
        delay: Ticks until a packet that was sent is taken: for as long it belongs to the state
            of this port. 0 to keep none.
    """

    sent: type[Sent]
    received: type[Received]
    connection: Connection
    lookahead: Lookahead
    recorder: Recorder
    delay: int

    def __post_init__(self) -> None:
        # Packets that were sent, each with its tick, and that the neighbour takes later.
        self._unacknowledged: deque[tuple[int, Sent]] = deque()

    def send(self, packet: Sent) -> None:
        """Send a packet."""
        self._unacknowledged.append((self.lookahead.tick, packet))
        self._discard_taken()
        self._write(packet)

    def receive(self, batch: int) -> Received:
        """Wait for the packet of a batch and return it."""
        lookahead = self.lookahead
        with self.recorder.span("wait", batch, lookahead.tick):
            message = self.connection.receive(self.received.kind, batch)
        lookahead.end_batch = max(lookahead.end_batch, message.number("end_batch"))
        return message.packet(self.received, self.connection.device)

    def state_dict(self) -> Tree:
        """Return the packets that were sent and are taken after this tick.

        The neighbour may have received them or not, as processes run ahead of each other, and a
        checkpoint describes all stages at one tick.
        """
        self._discard_taken()
        return [vars(packet) for _, packet in self._unacknowledged]

    def load_state_dict(self, state: Tree) -> None:
        """Send the packets of a state again."""
        packets = [self.sent(**packet) for packet in state]
        # One was sent in each of the ticks up to this one, for a training leaves out none.
        first_tick = self.lookahead.tick - len(packets) + 1
        self._unacknowledged = deque(enumerate(packets, first_tick))
        for packet in packets:
            self._write(packet)

    def _discard_taken(self) -> None:
        sent = self._unacknowledged
        while sent and sent[0][0] + self.delay <= self.lookahead.tick:
            sent.popleft()

    def _write(self, packet: Sent) -> None:
        """Send a packet as a message, with news of the batches to come."""
        with self.recorder.span("send", packet.batch, self.lookahead.tick):
            self.connection.send_packet(packet, end_batch=self.lookahead.end_batch)
