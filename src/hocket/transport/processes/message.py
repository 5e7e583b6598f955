"""Messages between two processes, as they are sent and as they were received."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.distributed import wire
from hocket.errors import PacketError, TransitError
from hocket.transport.port import Received
from hocket.transport.processes.backend import Backend, Lane
from hocket.transport.processes.posted_receives import (
    ExpectedLayouts,
    Layout,
    Part,
    PostedReceives,
)
from hocket.transport.processes.sequence_check import ADVICE, SequenceCheck
from hocket.tree import Tree, map_tensors


@dataclass(frozen=True)
class Message:
    """A message as it was received.

    Attributes:
        route: Receiver and sender, as error messages name them.
        header: Its values by name; nested tensors are references into ``tensors``.
        tensors: The tensors that were sent with it.
    """

    route: str
    header: dict[str, Any]
    tensors: list[Tensor]

    def value(self, name: str, kind: type) -> Any:
        """Return the value of this name and type.

        Raises:
            TransitError: There is none.
        """
        try:
            return wire.header_value(self.header, name, kind)
        except PacketError as error:
            raise self.error(str(error)) from None

    def tree(self, name: str, device: torch.device) -> Tree:
        """Return the nested tensors of this name, on a device.

        Raises:
            TransitError: There are none.
        """
        structures = self.value("trees", dict)
        if name not in structures:
            raise self.error(f"a packet arrived with a malformed header: it has no {name!r}")
        try:
            tree = wire.decode_tree(structures[name], self.tensors)
        except PacketError as error:
            raise self.error(str(error)) from None
        except RecursionError:
            raise self.error("a packet has a structure that is too deep") from None
        return map_tensors(lambda t: t.to(device), tree)

    def packet(self, packet_type: type[Received], device: torch.device) -> Received:
        """Return the packet that the message holds, with its tensors on a device.

        Raises:
            TransitError: It holds none of this type.
        """
        trees = {name: self.tree(name, device) for name in packet_type.tree_names}
        try:
            return packet_type.from_message(self.header, trees)
        except PacketError as error:
            raise self.error(str(error)) from None

    def error(self, text: str) -> TransitError:
        """Build the error for contents that do not fit such a message."""
        return TransitError(
            f"{self.route}: {self.header['kind']} {self.header['number']}: {text}; {ADVICE}"
        )


@dataclass(frozen=True)
class OutgoingMessage:
    """A message as it is sent.

    Attributes:
        kind: Kind of the message, such as ``activation``.
        number: Its number among the messages of that kind, such as the batch's number.
        parts: All that is sent, in order: the header, the rest of it if it is long, what fills
            the posted receives, and tensors that were not expected.
    """

    kind: str
    number: int
    parts: list[Part]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(tensor.nbytes for _, tensor, _ in self.parts)

    def begin(self) -> Callable[[], None]:
        """Start sending; return a function that waits until it is sent.

        That function also keeps the tensors alive until then.
        """
        started = [
            (backend, backend.send(tensor, lane), tensor)
            for backend, tensor, lane in self.parts
        ]

        def wait() -> None:
            for backend, handle, _ in started:
                backend.wait(handle)

        return wait


class MessageWriter:
    """Builds the messages to one neighbour, and counts them.

    Args:
        header_backend: Sends headers.
        backend: Sends tensors.
        ahead: Number of messages whose receives the neighbour posts before they are sent.
        checksum: Whether tensors are sent with a checksum; headers always are.

    Attributes:
        sent_bytes: Size of all messages that were counted.
    """

    def __init__(
        self, header_backend: Backend, backend: Backend, ahead: int, *, checksum: bool
    ) -> None:
        self.sent_bytes = 0
        self._header_backend = header_backend
        self._backend = backend
        self._checksum = checksum
        self._sent_count = 0
        self._expected = ExpectedLayouts(ahead)

    def encode(
        self, kind: str, number: int, header: dict[str, Any], trees: dict[str, Tree]
    ) -> OutgoingMessage:
        """Build the next message.

        Args:
            kind: Kind of the message.
            number: Its number among the messages of that kind.
            header: Values that JSON can hold, by name.
            trees: Nested tensors by name.

        Raises:
            PacketError: A tree holds a value that cannot be sent to another process.
        """
        # Flatten the trees to dense tensors, and describe them.
        collected: list[Tensor] = []
        specs = {name: wire.encode_tree(tree, collected) for name, tree in trees.items()}
        tensors = [wire.to_dense(tensor, self._backend.device) for tensor in collected]
        layout = [wire.tensor_spec(tensor) for tensor in tensors]

        # Write the header, which may be longer than its first part.
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
        parts: list[Part] = [(self._header_backend, first, Lane.HEADER)]
        if rest is not None:
            parts.append((self._header_backend, rest, Lane.LATE))

        # Fill the receives that the neighbour has posted, and send what does not fit them.
        filling, after = self._expected.arrange(layout, tensors, self._backend)
        return OutgoingMessage(kind, number, parts + filling + after)

    def count(self, message: OutgoingMessage) -> None:
        """Count a message that is sent."""
        self._sent_count += 1
        self.sent_bytes += message.nbytes


class MessageReader:
    """Receives the messages of one neighbour, and refuses those that are damaged or missing.

    Args:
        route: Receiver and sender, as error messages name them.
        header_backend: Receives headers.
        backend: Receives tensors.
    """

    def __init__(self, route: str, header_backend: Backend, backend: Backend) -> None:
        self._route = route
        self._posted = PostedReceives(header_backend, backend)
        self._sequence_check = SequenceCheck(route)

    @property
    def received_bytes(self) -> int:
        """Bytes that have arrived."""
        return self._posted.received_bytes

    @property
    def posted_count(self) -> int:
        """Number of messages whose receives are posted."""
        return len(self._posted)

    def post(self, layout: Layout) -> None:
        """Post the receives of one more message, laid out like this one."""
        self._posted.post(layout)

    def receive(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            TransitError: It is damaged, or not the next one.
        """
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
