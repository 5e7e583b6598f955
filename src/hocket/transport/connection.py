"""Edges between processes: packets as messages of torch.distributed, received ahead of need.

A thread receives whatever the neighbour sends, so that packets travel while both compute; what
has arrived waits in an inbox of limited room, and a neighbour that runs ahead waits for room.
Sends return at once, and another thread keeps the memory they read until it has been received.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hocket.distributed import wire
from hocket.distributed.world import World
from hocket.errors import HocketError, PacketError
from hocket.timeline import Recorder
from hocket.transport.backends import Backend, HostBackend
from hocket.transport.inbox import Inbox
from hocket.transport.outbox import Outbox
from hocket.transport.packet import Activation, Gradient
from hocket.transport.sequence_check import SequenceCheck
from hocket.transport.unacknowledged import Unacknowledged
from hocket.tree import Tree, map_tensors

IN_FLIGHT = 2
"""Packets that may be on their way to a neighbour before a send waits."""


@dataclass(frozen=True)
class Message:
    """What arrives in one piece: small values by name, and the tensors they speak of."""

    header: dict[str, Any]
    tensors: list[Tensor]

    def tree(self, name: str, device: torch.device) -> Tree:
        """One of the trees it holds, on a device."""
        return map_tensors(
            lambda t: t.to(device), wire.decode_tree(self.header[name], self.tensors)
        )


@dataclass(frozen=True)
class OutgoingMessage:
    """A parcel as it leaves.

    Attributes:
        kind: Of what it holds.
        number: Which of that kind.
        parts: What goes by which carrier, in this order: header, its rest, tensors.
    """

    kind: str
    number: int
    parts: list[tuple[Backend, Tensor]]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(part.nbytes for _, part in self.parts)

    def begin(self) -> Callable[[], None]:
        """Send it; what this gives waits until it is sent, and keeps the parts for as long."""
        begun = [(by, by.send(part), part) for by, part in self.parts]

        def finish() -> None:
            for by, work, _ in begun:
                by.finish(work)

        return finish


class Connection:
    """Both directions between this process and a neighbour.

    Args:
        world: This process among the others.
        rank: The neighbour's.
        room: How many packets may have arrived before they are needed.
        device: Where received tensors go.
        carrier: What takes tensors there and back; through the host if not given.
        keep: Takes activations as they come, in the thread that receives them; if not given
            they wait in the inbox.
        checksum: Whether tensors leave with one; headers always do.
        headers: What takes headers there and back; through the host if not given.
        gone: The error to raise when the neighbour is gone and the connection said this; that
            of the alarm, which ends the training, if not given.
    """

    def __init__(
        self,
        world: World,
        rank: int,
        room: int,
        device: torch.device,
        carrier: Backend | None = None,
        keep: Callable[[Activation], None] | None = None,
        *,
        checksum: bool = True,
        headers: Backend | None = None,
        gone: Callable[[str], HocketError] | None = None,
    ) -> None:
        self.rank = rank
        self.place = world.names[rank]
        self.device = device
        self.sent_bytes = 0
        self.received_bytes = 0
        self._world = world
        self._headers = headers or HostBackend(world, rank)
        self._gone = gone or partial(world.failures.peer_lost, rank)
        self._carrier = carrier or self._headers
        self._keep = keep
        self._checksum = checksum
        self._shipments = 0
        self._broken: Exception | None = None
        way = f"{world.name}, from {self.place}"
        self._order = SequenceCheck(way)
        self._inbox: Inbox[Message] = Inbox(way, room)
        self._outbox = Outbox(f"hocket-to-{rank}", IN_FLIGHT)
        world.failures.add_listener(self._inbox.fail)
        world.failures.add_listener(self._outbox.fail)
        self._thread = threading.Thread(
            target=self._receive, name=f"hocket-from-{rank}", daemon=True
        )
        self._thread.start()

    def send(self, kind: str, number: int, header: dict[str, Any], **trees: Tree) -> None:
        """Send a parcel; it goes on its way while this process does other things.

        Raises:
            PacketError: A tree holds what cannot cross to another process.
            HocketError: The neighbour is gone or does not receive.
        """
        found: list[Tensor] = []
        specs = {name: wire.encode_tree(tree, found) for name, tree in trees.items()}
        own = [wire.to_dense(tensor, self._carrier.device) for tensor in found]
        first, rest = wire.encode_header(
            header
            | specs
            | {
                "kind": kind,
                "number": number,
                "sequence": self._shipments,
                "tensors": [wire.tensor_spec(tensor) for tensor in own],
                "checksums": [wire.checksum(t) for t in own] if self._checksum else None,
            }
        )
        self._shipments += 1
        parts: list[tuple[Backend, Tensor]] = [(self._headers, first)]
        if rest is not None:
            parts.append((self._headers, rest))
        parts += [(self._carrier, tensor) for tensor in own if tensor.numel()]
        shipment = OutgoingMessage(kind, number, parts)
        what = f"{self.place} to take {kind} {number}"
        with self._waiting(f"sending {kind} {number} to {self.place}", what):
            self._outbox.add(shipment.begin, self._world.failures.timeout_s)
        self.sent_bytes += shipment.size

    @property
    def busy(self) -> bool:
        """Whether a send would have to wait."""
        return self._outbox.full

    def take(self, kind: str, number: int) -> Message:
        """The parcel of this kind and number, once it is there.

        Raises:
            PacketError: Another one came in its place.
            HocketError: The neighbour is gone, or sends nothing.
        """
        what = f"{kind} {number} from {self.place}"
        with self._waiting(f"waiting for {what}", what):
            return self._inbox.take((kind, number), self._world.failures.timeout_s)

    def until_over(self) -> Exception | None:
        """Wait until nothing more can arrive; what has cut the way, if anything has."""
        self._thread.join()
        return self._broken

    def abandon(self) -> None:
        """Leave a neighbour that is gone."""
        self._outbox.close(timeout_s=0)

    def close(self) -> None:
        """Tell the neighbour that nothing more will come, and wait until it says the same."""
        timeout_s = self._world.failures.timeout_s
        try:
            self.send("end", 0, {})
            self._outbox.drain(timeout_s)
        except Exception:
            # It has ended already; a send that it did not take may never be finished.
            self._outbox.close(timeout_s=0)
            return
        # A thread that is in a library when the interpreter ends would abort the process.
        self._outbox.close(timeout_s)
        self._thread.join(timeout_s)

    @contextmanager
    def _waiting(self, words: str, what: str) -> Iterator[None]:
        """Inside, the neighbour has to do its part; what it is said to have done if not."""
        alarm, start = self._world.failures, time.monotonic()
        try:
            with alarm.waiting_for(words, self.rank):
                yield
        except HocketError:
            raise
        except (RuntimeError, OSError) as error:
            if time.monotonic() - start >= alarm.timeout_s:
                raise alarm.peer_timed_out(self.rank, what) from None
            raise self._gone(str(error)) from None

    def _receive(self) -> None:
        try:
            while (parcel := self._next()).header["kind"] != "end":
                header = parcel.header
                if self._keep is not None and header["kind"] == "activation":
                    self._keep(read_activation(parcel, self.device))
                else:
                    self._inbox.put((header["kind"], header["number"]), parcel)
            self._inbox.fail(ConnectionError(f"{self.place} has ended its training"))
        except Exception as error:
            self._broken = error
            self._inbox.fail(error)  # whoever takes next raises it

    def _next(self) -> Message:
        first = self._headers.receive(["uint8", [wire.PREFIX], [1]])
        try:
            length = wire.remaining_bytes(first)
            rest = self._headers.receive(["uint8", [length], [1]]) if length else None
            header = wire.decode_header(first, rest)
        except PacketError as error:
            raise self._order.damaged_header(error) from None
        self._order.require_next(header)
        tensors = [self._carrier.receive(form) for form in header["tensors"]]
        self._order.require_intact(header, tensors)
        own = [first, *([rest] if rest is not None else []), *tensors]
        self.received_bytes += sum(part.nbytes for part in own)
        return Message(header, tensors)


def send_activation(connection: Connection, packet: Activation, until: int) -> None:
    """Send an activation, with the tick until which batches are certain to enter."""
    header = {
        "epoch": packet.epoch,
        "differentiable": packet.differentiable,
        "until": until,
        "share": packet.share,
    }
    trees = {"values": packet.values, "targets": packet.targets}
    connection.send("activation", packet.batch, header, **trees)


def read_activation(parcel: Message, device: torch.device) -> Activation:
    """The activation that a parcel holds, on a device."""
    return Activation(
        batch=parcel.header["number"],
        epoch=parcel.header["epoch"],
        values=parcel.tree("values", device),
        differentiable=tuple(parcel.header["differentiable"]),
        targets=parcel.tree("targets", device),
        share=parcel.header["share"],
    )


@dataclass
class Lookahead:
    """The tick that a stage is in, and until when a batch is certain to enter in every tick.

    The first stage reads ahead in the data and tells the others with every packet, so that a
    stage goes on by itself and yet stops at the tick at which all stop.
    """

    tick: int = 0
    until: int = 0


class ConnectionToNext:
    """What the stage above an edge sees: it sends activations and receives gradients.

    Args:
        connection: To the neighbour.
        horizon: The present tick, and how far batches are certain.
        recorder: What time is recorded by.
        delay: Ticks in which what is sent is kept for a state; 0 for none.
    """

    def __init__(
        self, connection: Connection, horizon: Lookahead, recorder: Recorder, delay: int = 0
    ) -> None:
        self._connection = connection
        self._horizon = horizon
        self._recorder = recorder
        self._kept: Unacknowledged[Activation] = Unacknowledged(delay)

    def send(self, packet: Activation) -> None:
        """Send an activation ahead."""
        self._kept.add(packet, self._horizon.tick)
        self._send(packet)

    def state_dict(self) -> Tree:
        """The activations that are taken after this tick."""
        return [vars(packet) for packet in self._kept.packets(self._horizon.tick)]

    def load_state_dict(self, state: Tree) -> None:
        """Send them."""
        packets = [Activation(**packet) for packet in state]
        self._kept.put_back(packets, self._horizon.tick)
        for packet in packets:
            self._send(packet)

    def _send(self, packet: Activation) -> None:
        with self._recorder.span("send", packet.batch, self._horizon.tick):
            send_activation(self._connection, packet, self._horizon.until)

    def receive(self, batch: int) -> Gradient:
        """The gradient of a batch."""
        with self._recorder.span("wait", batch, self._horizon.tick):
            parcel = self._connection.take("gradient", batch)
        return Gradient(batch, parcel.tree("values", self._connection.device))


class ConnectionToPrevious:
    """What the stage below an edge sees: it receives activations and sends gradients.

    Args:
        connection: To the neighbour.
        horizon: The present tick, and how far batches are certain.
        recorder: What time is recorded by.
        delay: Ticks in which what is sent is kept for a state; 0 for none.
    """

    def __init__(
        self, connection: Connection, horizon: Lookahead, recorder: Recorder, delay: int = 0
    ) -> None:
        self._connection = connection
        self._horizon = horizon
        self._recorder = recorder
        self._kept: Unacknowledged[Gradient] = Unacknowledged(delay)

    def receive(self, batch: int) -> Activation:
        """The activation of a batch."""
        with self._recorder.span("wait", batch, self._horizon.tick):
            parcel = self._connection.take("activation", batch)
        self._horizon.until = max(self._horizon.until, parcel.header["until"])
        return read_activation(parcel, self._connection.device)

    def send(self, packet: Gradient) -> None:
        """Send a gradient back."""
        self._kept.add(packet, self._horizon.tick)
        self._send(packet)

    def state_dict(self) -> Tree:
        """The gradients that are taken after this tick."""
        return [vars(packet) for packet in self._kept.packets(self._horizon.tick)]

    def load_state_dict(self, state: Tree) -> None:
        """Send them."""
        packets = [Gradient(**packet) for packet in state]
        self._kept.put_back(packets, self._horizon.tick)
        for packet in packets:
            self._send(packet)

    def _send(self, packet: Gradient) -> None:
        with self._recorder.span("send", packet.batch, self._horizon.tick):
            self._connection.send("gradient", packet.batch, {}, values=packet.values)
