"""Packets that were sent to another process and are taken in a later tick only.

The neighbour may have them already, or not yet, as processes run ahead of each other. A state
of all stages is that of one tick, so it is the sender that knows what was under way then.
"""

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

P = TypeVar("P")


class Unacknowledged(Generic[P]):
    """What one port has sent.

    Args:
        delay: Ticks from sending to taking; 0 to keep nothing.
    """

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._packets: deque[tuple[int, P]] = deque()

    def add(self, packet: P, now: int) -> None:
        """A packet is sent in this tick."""
        self._packets.append((now, packet))
        self._forget(now)

    def put_back(self, packets: Sequence[P], now: int) -> None:
        """These were sent, one in each tick until this one, as a training leaves out none."""
        self._packets = deque(enumerate(packets, now - len(packets) + 1))

    def packets(self, now: int) -> list[P]:
        """Those that are taken after this tick.

        >>> kept = Unacknowledged(delay=1)
        >>> kept.add("activation 5", now=7)
        >>> kept.packets(now=7), kept.packets(now=8)
        (['activation 5'], [])
        """
        self._forget(now)
        return [packet for _, packet in self._packets]

    def _forget(self, now: int) -> None:
        while self._packets and self._packets[0][0] + self._delay <= now:
            self._packets.popleft()
