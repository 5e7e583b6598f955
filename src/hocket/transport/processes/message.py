"""Messages between two processes, as they are sent and as they are received.

Bytes travel once their receiver has said where they go. A receive that is posted only when the
header of its message is there costs a round trip for each tensor, which on a link with latency
is most of the time. So the receives of the next messages are posted ahead, laid out as earlier
messages were. A message with another layout fills them with zeros, and follows after them.

Neither gloo nor NCCL loses or repeats messages. If one is lost nevertheless, by a bug in a
library or in Hocket, training must stop: it would silently learn from another batch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hocket.distributed import wire
from hocket.errors import PacketError, TransitError
from hocket.transport.packet import Activation, Gradient
from hocket.transport.port import Received
from hocket.transport.processes.backend import Arrival, Backend, Lane
from hocket.tree import Tree

Layout: TypeAlias = list[list[Any]]
"""Type, shape and strides of each tensor of a message."""
Part: TypeAlias = tuple[Backend, Tensor, Lane]
"""A tensor to send, the backend that sends it, and its lane."""
HEADER = ["uint8", [wire.HEADER_PREFIX_BYTES], [1]]
ASCENDING = (Activation.kind, Gradient.kind)
"""Kinds of packets whose numbers, the batches', must ascend; gaps are allowed."""
MALFORMED = (PacketError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors of a header that is intact, and is none of a packet."""
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

    def number(self, name: str) -> int:
        """Return the whole number of this name.

        Raises:
            TransitError: There is none.
        """
        with self._named_errors():
            return int(self.header["trees"][name])

    def trees(self, names: Sequence[str], device: torch.device) -> list[Tree]:
        """Return the nested values of these names, with their tensors on a device.

        Raises:
            TransitError: One is missing or malformed.
        """
        structures = self.header["trees"]
        tensors = [tensor.to(device) for tensor in self.tensors]
        with self._named_errors():
            return [wire.decode_tree(structures[name], tensors) for name in names]

    def packet(self, packet_type: type[Received], device: torch.device) -> Received:
        """Return the packet that the message holds, with its tensors on a device.

        Raises:
            TransitError: It holds none of this type.
        """
        values = self.trees(packet_type.sent, device)
        with self._named_errors():
            sent = dict(zip(packet_type.sent, values, strict=True))
            return packet_type(batch=self.header["number"], **sent)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Context manager that turns errors of the contents into errors of the message.

        Raises:
            TransitError: The contents do not fit such a message.
        """
        try:
            yield
        except MALFORMED as error:
            raise TransitError(
                f"{self.route}: {self.header['kind']} {self.header['number']} is malformed "
                f"({type(error).__name__}: {error!s:.200}); {ADVICE}"
            ) from None


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
        backend: Sends to the neighbour.
        ahead: Number of messages whose receives the neighbour posts before they are sent.
        checksum: Whether tensors are sent with a checksum; headers always are.

    Attributes:
        sent_bytes: Size of all messages that were counted.
    """

    def __init__(self, backend: Backend, ahead: int, *, checksum: bool) -> None:
        self.sent_bytes = 0
        self._backend = backend
        self._checksum = checksum
        self._sent_count = 0
        # Layouts that the receiver expects of the next messages.
        self._expected: deque[Layout] = deque([[]] * ahead, maxlen=ahead)

    def encode(self, kind: str, number: int, trees: Mapping[str, Tree]) -> OutgoingMessage:
        """Build the next message.

        Args:
            kind: Kind of the message.
            number: Its number among the messages of that kind.
            trees: Nested tensors, numbers and texts by name.

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
            {
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
        parts: list[Part] = [(self._backend.headers, first, Lane.HEADER)]
        if rest is not None:
            parts.append((self._backend.headers, rest, Lane.LATE))

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
        self.sent_bytes += sum(tensor.nbytes for _, tensor, _ in message.parts)


class MessageReader:
    """Receives the messages of one neighbour, and refuses those that are damaged or missing.

    Args:
        route: Receiver and sender, as error messages name them.
        backend: Receives from the neighbour.

    Attributes:
        posted: Messages whose receives are posted: the layout of each, and what waits for the
            header and for each tensor.
    """

    def __init__(self, route: str, backend: Backend) -> None:
        self._route = route
        self._backend = backend
        self.posted: deque[tuple[Layout, Arrival, list[Arrival]]] = deque()
        self._next = 0
        self._last_number: dict[str, int] = {}
        self._previous = "nothing"

    def post(self, layout: Layout) -> None:
        """Post the receives of one more message, laid out like this one."""
        header = self._backend.headers.post(HEADER, Lane.HEADER)
        arrivals = [self._backend.post(spec, Lane.EXPECTED) for spec in layout]
        self.posted.append((layout, header, arrivals))

    def receive(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            TransitError: It is damaged, or not the next one.
        """
        # Read the header, which may be longer than its first part.
        expected, arrive, arrivals = self.posted[0]
        try:
            header = wire.decode_header(
                arrive(),
                lambda count: self._backend.headers.post(["uint8", [count], [1]], Lane.LATE)(),
            )
            place = header["kind"], header["number"], header["sequence"]
            wire.require_room(header["tensors"])
        except MALFORMED as error:
            text = f"{error!s:.200}"
            if not isinstance(error, PacketError):
                text = (
                    f"a packet arrived with a malformed header ({type(error).__name__}: {text})"
                )
            raise TransitError(
                f"{self._route}, after {self._previous}: {text}; {ADVICE}"
            ) from None
        self._check_order(*place)

        # Wait for the tensors; where another layout was expected, zeros come before them.
        self.posted.popleft()
        tensors = [arrive() for arrive in arrivals]
        if header["tensors"] != expected:
            arrivals = [self._backend.post(spec, Lane.LATE) for spec in header["tensors"]]
            tensors = [arrive() for arrive in arrivals]
        self._check_tensors(header, tensors)
        return Message(self._route, header, tensors)

    def _check_order(self, kind: str, number: int, sequence: int) -> None:
        """Refuse a message that is not the next one.

        Raises:
            TransitError: A message before it is missing, or it has come before.
        """
        expected = self._next
        if sequence != expected:
            late = sequence < expected
            why = "it was repeated or delayed" if late else "packets before it were lost"
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
