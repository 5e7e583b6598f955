"""What a neighbour's packets must be like as they arrive: each once, in order, and undamaged.

Neither gloo nor NCCL loses or doubles anything. Where it happens nevertheless, by an error in a
library or in Hocket, a training that went on would learn from another batch, and tell nobody.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hocket.distributed import wire
from hocket.errors import TransitError

ASCENDING = ("activation", "gradient")
"""Kinds of packets that come for one batch after the other, some batches perhaps left out."""
ADVICE = "go on from the last checkpoint; if it comes again, suspect memory and network"


class SequenceCheck:
    """Checks the packets of one neighbour.

    Args:
        way: Who receives and who sends, for messages.
    """

    def __init__(self, way: str) -> None:
        self._way = way
        self._next = 0
        self._last: dict[str, int] = {}
        self._before = "nothing"

    def require_next(self, header: dict[str, Any]) -> None:
        """Refuse a packet that is not the next one.

        Raises:
            TransitError: One before it is missing, or it has come before.
        """
        kind, number = header["kind"], header["number"]
        found, wanted = header["sequence"], self._next
        if found != wanted:
            how = "it came again, or late" if found < wanted else "what was before it is lost"
            raise TransitError(
                f"{self._way}: {kind} {number} came as packet {found}, and packet {wanted} was "
                f"to come after {self._before}: {how}; {ADVICE}"
            )
        last = self._last.get(kind, -1)
        if kind in ASCENDING and number <= last:
            wrong = "arrived twice" if number == last else f"came after {kind} {last}"
            raise TransitError(f"{self._way}: {kind} {number} {wrong}; {ADVICE}")
        self._next += 1
        self._last[kind] = number
        self._before = f"{kind} {number}"

    def require_intact(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Refuse a packet with tensors that are not those it left with.

        Raises:
            TransitError: One of them has another checksum.
        """
        sums = header["checksums"] or []
        for place, (tensor, left) in enumerate(zip(tensors, sums, strict=bool(sums))):
            found = wire.checksum(tensor) if left is not None else None
            if found != left:
                raise TransitError(
                    f"{self._way}: {header['kind']} {header['number']} was damaged on its way: "
                    f"the checksum of its tensor {place} ({tensor.dtype}, "
                    f"{list(tensor.shape)}) is {found:08x}, and was {left:08x}; {ADVICE}"
                )

    def damaged_header(self, error: Exception) -> TransitError:
        """What to say of a packet whose header is damaged, so that nobody knows its batch."""
        return TransitError(f"{self._way}, after {self._before}: {error}; {ADVICE}")
