"""Packets on their way to another process, which keep whoever sends from running far ahead."""

import threading
from collections import deque
from collections.abc import Callable


class Outbox:
    """A few sends on their way, begun by one thread and finished by another.

    No send of torch can be called off, so the thread that begins them never waits in one: it
    can be told that there is nothing to wait for any more.

    Args:
        name: Of the thread.
        room: How many may be on their way; whoever begins another one waits.
    """

    def __init__(self, name: str, room: int) -> None:
        self._room = room
        self._finishes: deque[Callable[[], None]] = deque()
        self._error: Exception | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, begin: Callable[[], Callable[[], None]], timeout_s: float) -> None:
        """Begin a send once there is room; what it gives waits until the send is finished.

        Raises:
            TimeoutError: No room came in time.
            Exception: What ended the sends.
        """
        self._wait(self._room - 1, timeout_s)
        finish = begin()
        with self._changed:
            self._finishes.append(finish)
            self._changed.notify_all()

    @property
    def full(self) -> bool:
        """Whether whoever sends would have to wait."""
        with self._changed:
            return len(self._finishes) >= self._room

    def drain(self, timeout_s: float) -> None:
        """Wait until all sends are finished.

        Raises:
            TimeoutError: They were not in time.
            Exception: What ended the sends.
        """
        self._wait(0, timeout_s)

    def close(self, timeout_s: float) -> None:
        """End the thread, once what is on its way is finished, and wait for that so long."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def fail(self, error: Exception) -> None:
        """Nothing more will be sent, because of this error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _wait(self, most: int, timeout_s: float) -> None:
        """Until at most so many sends are on their way."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._error or len(self._finishes) <= most, timeout_s
            ):
                raise TimeoutError
            if self._error is not None:
                raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._finishes or self._closed)
                if not self._finishes:
                    return
                finish = self._finishes[0]
            try:
                finish()
            except Exception as error:
                self.fail(error)
                return
            with self._changed:
                self._finishes.popleft()
                self._changed.notify_all()
