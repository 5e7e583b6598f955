"""Inbox: messages that have arrived from another process and wait to be taken."""

import threading
from typing import TypeAlias

from hocket.errors import TransitError
from hocket.transport.processes.message import Message

PacketKey: TypeAlias = tuple[str, int]
"""Kind of a message, and its number among messages of that kind."""


class Inbox:
    """Buffer for a few messages, filled by one thread and emptied by another.

    Args:
        name: Name of the inbox in error messages.
        capacity: Number of messages that may wait; a thread that adds one more blocks.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self._name = name
        self._capacity = capacity
        self._messages: dict[PacketKey, Message] = {}
        self._error: Exception | None = None
        self._closed = False
        self._changed = threading.Condition()

    def put(self, key: PacketKey, message: Message) -> None:
        """Add a message, once there is room; messages of one kind come in ascending order.

        Raises:
            TransitError: A message with this key is there already.
        """
        with self._changed:
            if key in self._messages:
                raise TransitError(f"{self._name}: {_describe(key)} arrived twice")
            self._changed.wait_for(lambda: self._closed or len(self._messages) < self._capacity)
            if not self._closed:
                self._messages[key] = message
            self._changed.notify_all()

    def close(self) -> None:
        """Drop all messages, and those that come later, so that no thread waits for room."""
        with self._changed:
            self._messages.clear()
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Raise this error in all calls of ``take`` that find no message, now and later."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, key: PacketKey, timeout_s: float) -> Message:
        """Wait for the message with this key, remove it and return it.

        Raises:
            TransitError: Other messages came in its place.
            TimeoutError: It did not come in time.
            Exception: The error given to ``fail``.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: key in self._messages or self._error or self._cannot_arrive(key),
                timeout_s,
            )
            if key in self._messages:
                message = self._messages.pop(key)
                self._changed.notify_all()
                return message
            if self._error is not None:
                raise self._error
            if self._cannot_arrive(key):
                waiting = ", ".join(map(_describe, self._messages))
                raise TransitError(
                    f"{self._name}: {_describe(key)} was expected; in its place came {waiting}"
                )
            raise TimeoutError

    def _cannot_arrive(self, key: PacketKey) -> bool:
        """Return True if a later message of the kind has arrived, or the inbox is full."""
        kind, number = key
        later = any(k == kind and n > number for k, n in self._messages)
        return later or len(self._messages) >= self._capacity


def _describe(key: PacketKey) -> str:
    return " ".join(map(str, key))
