"""Connection to one neighbouring process: packets as messages of torch.distributed.

A thread receives messages as they arrive, so that packets travel while both processes compute.
They wait in an inbox of limited capacity; a neighbour that runs ahead waits until it has room.
Sends return at once, and a second thread keeps their tensors alive until they are received.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from hocket.distributed.failures.detector import Wait, naming_loss
from hocket.distributed.world.world import World
from hocket.errors import HocketError
from hocket.transport.packet import Activation, Gradient
from hocket.transport.processes.backend import Backend
from hocket.transport.processes.inbox import Inbox
from hocket.transport.processes.message import (
    Message,
    MessageReader,
    MessageWriter,
    OutgoingMessage,
    Part,
)
from hocket.transport.processes.outbox import Outbox
from hocket.tree import Tree

IN_FLIGHT = 2
"""Number of packets that may be on their way to a neighbour before a send blocks."""
LEAST_AHEAD = 2
"""Number of messages whose receives are posted ahead. With one, a message could not travel
before the neighbour knows that the last one has arrived."""


def messages_ahead(delays: Sequence[int]) -> int:
    """Return the number of messages whose receives are posted ahead over an edge.

    There and back again, a packet may take as many ticks as the delays allow.

    Args:
        delays: Ticks that packets may take over the edge, there and back.
    """
    return max(LEAST_AHEAD, 2 * max(delays))


class ConnectionCutError(HocketError):
    """The neighbour was killed, and may come back."""


class Connection:
    """Both directions between this process and a neighbour.

    Args:
        rank: Rank of the neighbour.
        capacity: Number of packets that may arrive before they are needed.
        device: Device on which received tensors are put.
        backend: Sends and receives headers and tensors.
        on_activation: Called with every activation in the receiving thread; if not given,
            activations wait in the inbox.
        ahead: Number of messages whose receives are posted before they are sent; the same at
            the neighbour.
        checksum: Whether tensors are sent with a checksum; headers always are.
    """

    def __init__(
        self,
        world: World,
        rank: int,
        capacity: int,
        device: torch.device,
        backend: Backend,
        on_activation: Callable[[Activation], None] | None = None,
        *,
        ahead: int = LEAST_AHEAD,
        checksum: bool = True,
    ) -> None:
        self.rank = rank
        self.peer_name = world.names[rank]
        self.device = device
        self._world = world
        self._on_activation = on_activation
        self._ahead = ahead
        self._receive_error: Exception | None = None
        self._ended = False  # the neighbour has said that nothing more will come

        # Messages are written and read through the backends.
        self._backend = backend
        route = f"{world.name}, from {self.peer_name}"
        self._writer = MessageWriter(backend, ahead, checksum=checksum)
        self._reader = MessageReader(route, backend)

        # What arrives waits in an inbox; an outbox waits for what is sent.
        self._inbox: Inbox = Inbox(route, capacity)
        self._outbox = Outbox(f"hocket-to-{rank}", IN_FLIGHT)
        self._thread = threading.Thread(
            target=self._receive_loop, name=f"hocket-from-{rank}", daemon=True
        )
        self._thread.start()

    def send(self, kind: str, number: int, **trees: Tree) -> None:
        """Start sending a message; return before the neighbour has received it.

        Args:
            kind: Kind of the message.
            number: Its number among the messages of that kind.
            **trees: Nested tensors, numbers and texts by name.

        Raises:
            PacketError: A tree holds a value that cannot be sent to another process.
            HocketError: The neighbour is lost or does not receive.
        """
        message = self._writer.encode(kind, number, trees)
        wanted = f"{self.peer_name} to take {kind} {number}"
        activity = f"sending {kind} {number} to {self.peer_name}"
        with self._waiting_for_peer(activity, wanted) as wait:
            wait.until(partial(self._outbox.add, message.begin))
        self._writer.count(message)

    def send_packet(self, packet: Activation | Gradient, **trees: Tree) -> None:
        """Start sending a packet, with further values by name; see `send`."""
        values = {name: getattr(packet, name) for name in packet.sent}
        self.send(packet.kind, packet.batch, **values, **trees)

    @property
    def sent_bytes(self) -> int:
        """Bytes that were sent."""
        return self._writer.sent_bytes

    @property
    def busy(self) -> bool:
        """True if a send would block."""
        return self._outbox.full

    def receive(self, kind: str, number: int) -> Message:
        """Wait for the message of this kind and number and return it.

        Raises:
            PacketError: Another message came in its place.
            HocketError: The neighbour is lost, or sends nothing.
        """
        wanted = f"{kind} {number} from {self.peer_name}"
        with self._waiting_for_peer(f"waiting for {wanted}", wanted) as wait:
            return wait.until(partial(self._inbox.take, (kind, number)))

    def wait_closed(self) -> Exception | None:
        """Block until the connection closes; return the error that closed it, if any."""
        self._thread.join()
        return self._receive_error

    def abort(self) -> None:
        """Close the connection to a neighbour that is lost, without waiting for anything."""
        self._outbox.close()

    def begin_close(self) -> None:
        """Tell the neighbour that nothing more will come, without waiting for it.

        Until it says the same, all that it has sent is received and dropped.
        """
        self._inbox.close()
        parts: list[Part] = []
        for _ in range(self._ahead):  # a posted receive cannot be taken back
            message = self._writer.encode("end", 0, {})
            self._writer.count(message)
            parts += message.parts
        self._outbox.close(OutgoingMessage("end", 0, parts).begin)

    def finish_close(self, timeout_s: float) -> bool:
        """Wait until the neighbour says the same; return True if nothing is under way.

        A thread that is in a library when the interpreter ends would abort the process.
        """
        end_s = time.monotonic() + timeout_s
        sent = self._outbox.join(timeout_s)
        self._thread.join(max(end_s - time.monotonic(), 0))
        quiet = sent and not self._thread.is_alive() and self._ended
        if quiet:
            self._backend.close(end_s - time.monotonic())
        return quiet

    @contextmanager
    def _waiting_for_peer(self, activity: str, wanted: str) -> Iterator[Wait]:
        """Context manager that turns errors of its body into errors of a failed neighbour.

        ``activity`` tells other processes what this one is doing, and ``wanted`` is the event
        that a time-out names.

        Raises:
            HocketError: The neighbour failed, was lost or did not respond in time.
            Exception: The body's own error, if it is of something else.
        """
        waiting = self._world.failures.waiting_for(activity, [self.rank], wanted)
        with naming_loss(self._build_lost_error), waiting as wait:
            yield wait

    def _build_lost_error(self, text: str) -> HocketError:
        if self._world.membership.may_rejoin:
            return ConnectionCutError(text)
        return self._world.failures.peer_lost(self.rank, text)

    def _receive_loop(self) -> None:
        try:
            for _ in range(self._ahead):
                self._reader.post([])
            while (message := self._reader.receive()).header["kind"] != "end":
                header = message.header
                if self._on_activation is not None and header["kind"] == Activation.kind:
                    self._on_activation(message.packet(Activation, self.device))
                else:
                    self._inbox.put((header["kind"], header["number"]), message)
                self._reader.post(header["tensors"])
            while self._reader.posted:
                self._reader.receive()
            self._ended = True
            self._inbox.fail(ConnectionError(f"{self.peer_name} has ended its training"))
        except Exception as error:
            self._receive_error = error
            self._inbox.fail(error)  # raised by the next call of receive
