"""Packets that were sent to another process and are taken only in a later tick.

The neighbour may have received them or not, as processes run ahead of each other. A checkpoint
describes all stages at one tick, so the sender keeps the packets that were on their way then.
"""

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

P = TypeVar("P")


class Unacknowledged(Generic[P]):
    """Packets that one port has sent and whose receiver takes them later.

    Args:
        delay: Ticks from sending a packet to taking it; 0 to keep none.
    """

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._packets: deque[tuple[int, P]] = deque()

    def add(self, packet: P, tick: int) -> None:
        """Add a packet that is sent in this tick."""
        self._packets.append((tick, packet))
        self._discard_taken(tick)

    def restore(self, packets: Sequence[P], tick: int) -> None:
        """Replace all packets by those of a state.

        One was sent in each of the ticks up to this one, for a training leaves out none.
        """
        self._packets = deque(enumerate(packets, tick - len(packets) + 1))

    def packets(self, tick: int) -> list[P]:
        """Return the packets that are taken after this tick.

        >>> sent = Unacknowledged(delay=1)
        >>> sent.add("activation 5", tick=7)
        >>> sent.packets(tick=7), sent.packets(tick=8)
        (['activation 5'], [])
        """
        self._discard_taken(tick)
        return [packet for _, packet in self._packets]

    def _discard_taken(self, tick: int) -> None:
        while self._packets and self._packets[0][0] + self._delay <= tick:
            self._packets.popleft()
