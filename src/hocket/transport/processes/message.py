"""Messages between two processes, as they are sent and as they are received.

Bytes travel once their receiver has said where they go. A receive that is posted only when the
header of its message is there costs a round trip for each tensor, which on a link with latency
is most of the time. So the receives of the next messages are posted ahead, laid out as earlier
messages were. A message with another layout fills them with zeros, and follows after them.

Neither gloo nor NCCL loses or repeats messages. If one is lost nevertheless, by a bug in a
library or in Hocket, training must stop: it would silently learn from another batch.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hocket.distributed import wire
from hocket.errors import PacketError, TransitError
from hocket.transport.packet import Activation, Gradient
from hocket.transport.port import Received
from hocket.transport.processes.backend import Arrival, Backend, Lane
from hocket.tree import Tree, map_tensors

Layout: TypeAlias = list[list[Any]]
"""Type, shape and strides of each tensor of a message."""
Part: TypeAlias = tuple[Backend, Tensor, Lane]
"""A tensor to send, the backend that sends it, and its lane."""
HEADER = ["uint8", [wire.HEADER_PREFIX_BYTES], [1]]
ASCENDING = (Activation.kind, Gradient.kind)
"""Kinds of packets whose numbers, the batches', must ascend; gaps are allowed."""
ADVICE = (
    "resume from the last checkpoint; if it happens again, suspect the memory or the network"
)


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
        # Layouts that the receiver expects of the next messages.
        self._expected: deque[Layout] = deque([[]] * ahead, maxlen=ahead)

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
        expected, lane = self._expected[0], Lane.EXPECTED
        self._expected.append(layout)
        if layout != expected:
            zeros = (wire.empty_tensor(spec, self._backend.device).zero_() for spec in expected)
            parts += [(self._backend, zero, lane) for zero in zeros if zero.numel()]
            lane = Lane.LATE
        parts += [(self._backend, tensor, lane) for tensor in tensors if tensor.numel()]
        return OutgoingMessage(kind, number, parts)

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

    Attributes:
        received_bytes: Bytes that have arrived, with those that only filled receives.
    """

    def __init__(self, route: str, header_backend: Backend, backend: Backend) -> None:
        self.received_bytes = 0
        self._route = route
        self._header_backend, self._backend = header_backend, backend
        # Of each message the layout, and what waits for the header and for each tensor.
        self._posted: deque[tuple[Layout, Arrival, list[Arrival]]] = deque()
        self._next = 0
        self._last_number: dict[str, int] = {}
        self._previous = "nothing"

    @property
    def posted_count(self) -> int:
        """Number of messages whose receives are posted."""
        return len(self._posted)

    def post(self, layout: Layout) -> None:
        """Post the receives of one more message, laid out like this one."""
        header = self._header_backend.post(HEADER, Lane.HEADER)
        arrivals = [self._backend.post(spec, Lane.EXPECTED) for spec in layout]
        self._posted.append((layout, header, arrivals))

    def receive(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            TransitError: It is damaged, or not the next one.
        """
        # Read the header, which may be longer than its first part.
        expected, arrive, arrivals = self._posted[0]
        try:
            first, rest = arrive(), None
            length = wire.remaining_bytes(first)
            self.received_bytes += first.nbytes + length
            if length:
                rest = self._header_backend.post(["uint8", [length], [1]], Lane.LATE)()
            header = wire.decode_header(first, rest)
            wire.check_header(header)
        except PacketError as error:
            raise TransitError(
                f"{self._route}, after {self._previous}: {error}; {ADVICE}"
            ) from None
        self._check_order(header["kind"], header["number"], header["sequence"])

        # Wait for the tensors; where another layout was expected, zeros come before them.
        self._posted.popleft()
        tensors = self._wait(arrivals)
        if header["tensors"] != expected:
            tensors = self._wait(
                [self._backend.post(spec, Lane.LATE) for spec in header["tensors"]]
            )
        self._check_tensors(header, tensors)
        return Message(self._route, header, tensors)

    def _wait(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        tensors = [arrive() for arrive in arrivals]
        self.received_bytes += sum(tensor.nbytes for tensor in tensors)
        return tensors

    def _check_order(self, kind: str, number: int, sequence: int) -> None:
        """Refuse a message that is not the next one.

        Raises:
            TransitError: A message before it is missing, or it has come before.
        """
        expected = self._next
        if sequence != expected:
            why = (
                "it was repeated or delayed"
                if sequence < expected
                else "packets before it were lost"
            )
            raise TransitError(
                f"{self._route}: {kind} {number} arrived as packet {sequence}, but packet "
                f"{expected} was expected after {self._previous}: {why}; {ADVICE}"
            )
        last = self._last_number.get(kind, -1)
        if kind in ASCENDING and number <= last:
            wrong = "arrived twice" if number == last else f"came after {kind} {last}"
            raise TransitError(f"{self._route}: {kind} {number} {wrong}; {ADVICE}")
        self._next += 1
        self._last_number[kind] = number
        self._previous = f"{kind} {number}"

    def _check_tensors(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Refuse a message whose tensors differ from those that were sent.

        Raises:
            TransitError: The checksum of a tensor differs.
        """
        checksums = header["checksums"] or []
        for index, (tensor, sent) in enumerate(zip(tensors, checksums, strict=bool(checksums))):
            received = wire.checksum(tensor) if sent is not None else None
            if received != sent:
                raise TransitError(
                    f"{self._route}: {header['kind']} {header['number']} was damaged in "
                    f"transit: tensor {index} ({tensor.dtype}, {list(tensor.shape)}) was sent "
                    f"with checksum {sent:016x} and arrived with {received:016x}; {ADVICE}"
                )
