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
from typing import Any

import torch
from torch import Tensor

from hocket.distributed import wire
from hocket.distributed.failures.waits import Wait
from hocket.distributed.world.world import World
from hocket.errors import HocketError, PacketError
from hocket.transport.packet import Activation, Gradient
from hocket.transport.processes.backend import Backend, Lane
from hocket.transport.processes.backends import HostBackend
from hocket.transport.processes.inbox import Inbox
from hocket.transport.processes.message import Message, OutgoingMessage, read_activation
from hocket.transport.processes.outbox import Outbox
from hocket.transport.processes.posted_receives import ExpectedLayouts, Part, PostedReceives
from hocket.transport.processes.sequence_check import SequenceCheck
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


class Connection:
    """Both directions between this process and a neighbour.

    Args:
        world: The processes of the training.
        rank: Rank of the neighbour.
        capacity: Number of packets that may arrive before they are needed.
        device: Device on which received tensors are put.
        backend: Sends and receives tensors; through host memory if not given.
        on_activation: Called with every activation in the receiving thread; if not given,
            activations wait in the inbox.
        ahead: Number of messages whose receives are posted before they are sent; the same at
            the neighbour.
        checksum: Whether tensors are sent with a checksum; headers always are.
        header_backend: Sends and receives headers; through host memory if not given.
        lost_error: Builds the error to raise when the neighbour is lost, from the text of the
            backend's error; by default the failure detector does, and the training ends.
    """

    def __init__(
        self,
        world: World,
        rank: int,
        capacity: int,
        device: torch.device,
        backend: Backend | None = None,
        on_activation: Callable[[Activation], None] | None = None,
        *,
        ahead: int = LEAST_AHEAD,
        checksum: bool = True,
        header_backend: Backend | None = None,
        lost_error: Callable[[str], HocketError] | None = None,
    ) -> None:
        self.rank = rank
        self.peer_name = world.names[rank]
        self.device = device
        self.sent_bytes = 0
        self._world = world
        self._header_backend = header_backend or HostBackend(world, rank)
        self._lost_error = lost_error or partial(world.failures.peer_lost, rank)
        self._backend = backend or self._header_backend
        self._on_activation = on_activation
        self._checksum = checksum
        self._sent_count = 0
        self._ahead = ahead
        self._expected = ExpectedLayouts(ahead)
        self._posted = PostedReceives(self._header_backend, self._backend)
        self._receive_error: Exception | None = None
        self._ended = False  # the neighbour has said that nothing more will come
        self._route = f"{world.name}, from {self.peer_name}"
        self._sequence_check = SequenceCheck(self._route)
        self._inbox: Inbox[Message] = Inbox(self._route, capacity)
        self._outbox = Outbox(f"hocket-to-{rank}", IN_FLIGHT)
        world.failures.add_listener(self._inbox.fail)
        world.failures.add_listener(self._outbox.fail)
        self._thread = threading.Thread(
            target=self._receive_loop, name=f"hocket-from-{rank}", daemon=True
        )
        self._thread.start()

    def send(self, kind: str, number: int, header: dict[str, Any], **trees: Tree) -> None:
        """Start sending a message; return before the neighbour has received it.

        Args:
            kind: Kind of the message.
            number: Its number among the messages of that kind.
            header: Values that JSON can hold, by name.
            **trees: Nested tensors by name.

        Raises:
            PacketError: A tree holds a value that cannot be sent to another process.
            HocketError: The neighbour is lost or does not receive.
        """
        message = self._encode(kind, number, header, trees)
        wanted = f"{self.peer_name} to take {kind} {number}"
        activity = f"sending {kind} {number} to {self.peer_name}"
        with self._waiting_for_peer(activity, wanted) as wait:
            wait.until(partial(self._outbox.add, message.begin))
        self._count(message)

    @property
    def received_bytes(self) -> int:
        """Bytes that have arrived."""
        return self._posted.received_bytes

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
        arrived = self._inbox.take_arrived((kind, number))
        if arrived is not None:  # no wait to tell others of
            return arrived
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
            message = self._encode("end", 0, {}, {})
            self._count(message)
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
        """Context manager that turns errors of its body into those of a failed neighbour.

        ``activity`` tells other processes what this one is doing, and ``wanted`` is the event
        that a time-out names.

        Raises:
            HocketError: The neighbour failed, was lost or did not respond in time.
            OutOfMemoryError: The memory of this process's GPU was short.
            RuntimeError: A worker of this process's DataLoader ended.
        """
        try:
            with self._world.failures.waiting_for(activity, [self.rank], wanted) as wait:
                yield wait
        except (HocketError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            # PyTorch raises this one in whatever line the process is when the worker ends.
            if str(error).startswith("DataLoader worker"):
                raise
            raise self._lost_error(str(error)) from None
        except OSError as error:
            raise self._lost_error(str(error)) from None

    def _encode(
        self, kind: str, number: int, header: dict[str, Any], trees: dict[str, Tree]
    ) -> OutgoingMessage:
        """Build the next message; the arguments are those of `send`."""
        collected: list[Tensor] = []
        specs = {name: wire.encode_tree(tree, collected) for name, tree in trees.items()}
        tensors = [wire.to_dense(tensor, self._backend.device) for tensor in collected]
        layout = [wire.tensor_spec(tensor) for tensor in tensors]
        first, rest = wire.encode_header(
            header
            | {
                "trees": specs,
                "kind": kind,
                "number": number,
                "sequence": self._sent_count,
                "tensors": layout,
                "checksums": (
                    [wire.checksum(tensor) for tensor in tensors] if self._checksum else None
                ),
            }
        )
        filling, after = self._expected.arrange(layout, tensors, self._backend)
        parts: list[Part] = [(self._header_backend, first, Lane.HEADER)]
        if rest is not None:
            parts.append((self._header_backend, rest, Lane.LATE))
        return OutgoingMessage(kind, number, parts + filling + after)

    def _count(self, message: OutgoingMessage) -> None:
        self._sent_count += 1
        self.sent_bytes += message.nbytes

    def _receive_loop(self) -> None:
        try:
            for _ in range(self._ahead):
                self._posted.post([])
            while (message := self._receive_message()).header["kind"] != "end":
                header = message.header
                if self._on_activation is not None and header["kind"] == Activation.kind:
                    self._on_activation(read_activation(message, self.device))
                else:
                    self._inbox.put((header["kind"], header["number"]), message)
                self._posted.post(header["tensors"])
            while len(self._posted):
                self._receive_message()
            self._ended = True
            self._inbox.fail(ConnectionError(f"{self.peer_name} has ended its training"))
        except Exception as error:
            self._receive_error = error
            self._inbox.fail(error)  # raised by the next call of receive

    def _receive_message(self) -> Message:
        try:
            first, rest = self._posted.receive_header()
            header = wire.decode_header(first, rest)
            wire.check_header(header)
        except PacketError as error:
            raise self._sequence_check.header_error(error) from None
        self._sequence_check.check_header(header)
        tensors = self._posted.receive_tensors(header["tensors"])
        self._sequence_check.check_tensors(header, tensors)
        return Message(self._route, header, tensors)


def send_activation(connection: Connection, packet: Activation, end_batch: int) -> None:
    """Send an activation to the next stage.

    Args:
        connection: The connection to that stage.
        packet: The activation.
        end_batch: First batch that is not certain to enter.
    """
    header = {
        "epoch": packet.epoch,
        "differentiable": packet.differentiable,
        "end_batch": end_batch,
        "share": packet.share,
    }
    trees = {"values": packet.values, "targets": packet.targets}
    connection.send(packet.kind, packet.batch, header, **trees)


def send_gradient(connection: Connection, packet: Gradient) -> None:
    """Send a gradient to the previous stage."""
    connection.send(packet.kind, packet.batch, {}, values=packet.values)
