"""Receives that are posted before their messages are sent.

Bytes travel once their receiver has said where they go. A receive that is posted only when the
header of its message is there costs a round trip for each tensor, which on a link with latency
is most of the time. So the receives of the next messages are posted ahead, laid out as earlier
messages were. A message with another layout fills them with zeros, and follows after them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from hocket.distributed import wire
from hocket.transport.processes.backend import Arrival, Backend, Lane

Layout: TypeAlias = list[list[Any]]
"""Type, shape and strides of each tensor of a message."""
Part: TypeAlias = tuple[Backend, Tensor, Lane]
"""A tensor to send, the backend that sends it, and its lane."""

HEADER = ["uint8", [wire.HEADER_PREFIX_BYTES], [1]]


class ExpectedLayouts:
    """Layouts that the receiver expects of the next messages, as their sender knows them.

    Args:
        ahead: Number of messages that are expected at any time.
    """

    def __init__(self, ahead: int) -> None:
        self._last: deque[Layout] = deque([[]] * ahead, maxlen=ahead)

    def arrange(
        self, layout: Layout, tensors: Sequence[Tensor], backend: Backend
    ) -> tuple[list[Part], list[Part]]:
        """Return the parts that fill the posted receives of a message, and those after them.

        Args:
            layout: Layout of the message; from now on it is expected of a later one.
            tensors: Its tensors.
            backend: Sends them.
        """
        expected = self._last[0]
        self._last.append(layout)
        sent = [tensor for tensor in tensors if tensor.numel()]
        if layout == expected:
            return [(backend, tensor, Lane.EXPECTED) for tensor in sent], []
        filling = (wire.empty_tensor(spec, backend.device).zero_() for spec in expected)
        return (
            [(backend, tensor, Lane.EXPECTED) for tensor in filling if tensor.numel()],
            [(backend, tensor, Lane.LATE) for tensor in sent],
        )


@dataclass(frozen=True)
class PostedMessage:
    """Receives of one message that have been posted.

    Attributes:
        layout: Layout that was expected.
        header: Waits for the first part of the header.
        arrivals: Each waits for one tensor.
    """

    layout: Layout
    header: Arrival
    arrivals: list[Arrival]


class PostedReceives:
    """Receives of the next messages of a neighbour.

    Args:
        header_backend: Receives headers.
        backend: Receives tensors.

    Attributes:
        received_bytes: Bytes that have arrived, with those that only filled receives.
    """

    def __init__(self, header_backend: Backend, backend: Backend) -> None:
        self._header_backend, self._backend = header_backend, backend
        self._posted: deque[PostedMessage] = deque()
        self.received_bytes = 0

    def post(self, layout: Layout) -> None:
        """Post the receives of one more message, laid out like this one."""
        header = self._header_backend.post(HEADER, Lane.HEADER)
        arrivals = [self._backend.post(spec, Lane.EXPECTED) for spec in layout]
        self._posted.append(PostedMessage(layout, header, arrivals))

    def __len__(self) -> int:
        return len(self._posted)

    def receive_header(self) -> tuple[Tensor, Tensor | None]:
        """Wait for the header of the next message; return its first part and the rest.

        Raises:
            PacketError: The header is damaged or too large.
        """
        first = self._posted[0].header()
        length = wire.remaining_bytes(first)
        self.received_bytes += first.nbytes + length
        if not length:
            return first, None
        return first, self._header_backend.post(["uint8", [length], [1]], Lane.LATE)()

    def receive_tensors(self, layout: Layout) -> list[Tensor]:
        """Wait for the tensors of the message whose header has come.

        Args:
            layout: Their layout, by the header.
        """
        posted = self._posted.popleft()
        arrived = self._wait(posted.arrivals)
        if layout == posted.layout:
            return arrived
        return self._wait([self._backend.post(spec, Lane.LATE) for spec in layout])

    def _wait(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        tensors = [arrive() for arrive in arrivals]
        self.received_bytes += sum(tensor.nbytes for tensor in tensors)
        return tensors
