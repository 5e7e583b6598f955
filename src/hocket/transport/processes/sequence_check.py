"""Checks that the packets of a neighbour arrive once each, in order, and undamaged.

Neither gloo nor NCCL loses or repeats messages. If one is lost nevertheless, by a bug in a
library or in Hocket, training must stop: it would silently learn from another batch.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hocket.distributed import wire
from hocket.errors import TransitError
from hocket.transport.packet import Activation, Gradient

ASCENDING = (Activation.kind, Gradient.kind)
"""Kinds of packets whose numbers, the batches', must ascend; gaps are allowed."""
ADVICE = (
    "resume from the last checkpoint; if it happens again, suspect the memory or the network"
)


class SequenceCheck:
    """Checks of the packets that come from one neighbour.

    Args:
        route: Receiver and sender, as error messages name them.
    """

    def __init__(self, route: str) -> None:
        self._route = route
        self._next = 0
        self._last_number: dict[str, int] = {}
        self._previous = "nothing"

    def check_header(self, header: dict[str, Any]) -> None:
        """Refuse a packet that is not the next one.

        Raises:
            TransitError: A packet before it is missing, or it has come before.
        """
        kind, number = header["kind"], header["number"]
        sequence, expected = header["sequence"], self._next
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

    def check_tensors(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Refuse a packet whose tensors differ from those that were sent.

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

    def header_error(self, error: Exception) -> TransitError:
        """Build the error for a packet whose header cannot be read, and so has no number."""
        return TransitError(f"{self._route}, after {self._previous}: {error}; {ADVICE}")
