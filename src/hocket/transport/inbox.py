"""Packets that have arrived from another process and wait to be taken."""

import threading
from typing import Generic, TypeAlias, TypeVar

from hocket.errors import TransitError

P = TypeVar("P")
Name: TypeAlias = tuple[str, int]
"""Of what kind a packet is, and which of that kind."""


class Inbox(Generic[P]):
    """Room for a few packets, filled by one thread and emptied by another.

    Args:
        what: What arrives here, for messages.
        room: How many packets may wait; whoever fills it waits for room.
    """

    def __init__(self, what: str, room: int) -> None:
        self._what = what
        self._room = room
        self._packets: dict[Name, P] = {}
        self._error: Exception | None = None
        self._changed = threading.Condition()

    def put(self, name: Name, packet: P) -> None:
        """Leave a packet, once there is room; those of a kind come in the order of numbers.

        Raises:
            TransitError: One of that name is there already.
        """
        with self._changed:
            if name in self._packets:
                raise TransitError(f"{self._what}: {_words(name)} arrived twice")
            self._changed.wait_for(lambda: len(self._packets) < self._room)
            self._packets[name] = packet
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Nothing will arrive any more, because of this error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, name: Name, timeout_s: float) -> P:
        """Take the packet of this name, once it is there.

        Raises:
            TransitError: Others came in its place.
            TimeoutError: It did not come in time.
            Exception: What ended the arrivals.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: name in self._packets or self._error or self._passed_over(name),
                timeout_s,
            )
            if name in self._packets:
                packet = self._packets.pop(name)
                self._changed.notify_all()
                return packet
            if self._error is not None:
                raise self._error
            if self._passed_over(name):
                waiting = ", ".join(map(_words, self._packets))
                raise TransitError(
                    f"{self._what}: {_words(name)} was expected; in its place came {waiting}"
                )
            raise TimeoutError

    def _passed_over(self, name: Name) -> bool:
        """Whether a packet can come no more: a later one has, or there is no room for it."""
        kind, number = name
        later = any(other == kind and there > number for other, there in self._packets)
        return later or len(self._packets) >= self._room


def _words(name: Name) -> str:
    return " ".join(map(str, name))
