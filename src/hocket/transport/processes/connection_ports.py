"""Ports of a stage whose neighbours are in other processes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic

from hocket.timeline import Recorder
from hocket.transport.packet import Activation, Gradient
from hocket.transport.port import Received, Sent
from hocket.transport.processes.connection import (
    Connection,
    send_activation,
    send_gradient,
)
from hocket.transport.processes.message import Message, read_activation, read_gradient
from hocket.transport.processes.unacknowledged import Unacknowledged
from hocket.tree import Tree


@dataclass
class Lookahead:
    """Current tick of a stage, and how far ahead its batches are certain.

    The first stage reads ahead in the data and sends ``end_batch`` with every packet, so that
    each stage trains without asking, and all stop after the same batch.

    Attributes:
        tick: The tick that the stage is executing.
        end_batch: First batch that is not certain to enter.
    """

    tick: int = 0
    end_batch: int = 0


class ConnectionPort(ABC, Generic[Sent, Received]):
    """Common base of the two ports at a connection.

    Args:
        connection: The connection to the neighbour.
        lookahead: The current tick, and how far ahead batches are certain.
        recorder: Records the time of sends and of waits.
        delay: Ticks until a packet that was sent is taken: for as long it belongs to the state
            of this port. 0 to keep none.
    """

    _sent_type: type[Sent]
    _received_kind: str

    def __init__(
        self, connection: Connection, lookahead: Lookahead, recorder: Recorder, delay: int = 0
    ) -> None:
        self._connection = connection
        self._lookahead = lookahead
        self._recorder = recorder
        self._unacknowledged: Unacknowledged[Sent] = Unacknowledged(delay)

    def send(self, packet: Sent) -> None:
        """Send a packet."""
        self._unacknowledged.add(packet, self._lookahead.tick)
        self._send(packet)

    def receive(self, batch: int) -> Received:
        """Wait for the packet of a batch and return it."""
        with self._recorder.span("wait", batch, self._lookahead.tick):
            message = self._connection.receive(self._received_kind, batch)
        return self._read(message)

    def state_dict(self) -> Tree:
        """Return the packets that were sent and are taken after this tick."""
        return [vars(p) for p in self._unacknowledged.packets(self._lookahead.tick)]

    def load_state_dict(self, state: Tree) -> None:
        """Send the packets of a state again."""
        packets = [self._sent_type(**packet) for packet in state]
        self._unacknowledged.restore(packets, self._lookahead.tick)
        for packet in packets:
            self._send(packet)

    def _send(self, packet: Sent) -> None:
        with self._recorder.span("send", packet.batch, self._lookahead.tick):
            self._write(packet)

    @abstractmethod
    def _write(self, packet: Sent) -> None:
        """Send a packet as a message."""

    @abstractmethod
    def _read(self, message: Message) -> Received:
        """Build the packet that a message holds."""


class ConnectionToNext(ConnectionPort[Activation, Gradient]):
    """Port to the next stage: sends activations and receives gradients."""

    _sent_type = Activation
    _received_kind = Gradient.kind

    def _write(self, packet: Activation) -> None:
        send_activation(self._connection, packet, self._lookahead.end_batch)

    def _read(self, message: Message) -> Gradient:
        return read_gradient(message, self._connection.device)


class ConnectionToPrevious(ConnectionPort[Gradient, Activation]):
    """Port to the previous stage: receives activations and sends gradients."""

    _sent_type = Gradient
    _received_kind = Activation.kind

    def _write(self, packet: Gradient) -> None:
        send_gradient(self._connection, packet)

    def _read(self, message: Message) -> Activation:
        lookahead = self._lookahead
        lookahead.end_batch = max(lookahead.end_batch, message.value("end_batch", int))
        return read_activation(message, self._connection.device)
