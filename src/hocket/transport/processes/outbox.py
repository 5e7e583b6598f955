"""Outbox: sends that have started and not finished, limited in number."""

import threading
from collections import deque
from collections.abc import Callable


class Outbox:
    """Queue of a few sends, started by one thread and waited for by another.

    A send of torch cannot be cancelled. The thread that starts sends therefore never waits for
    one itself, so that ``fail`` can wake it up.

    Args:
        name: Name of the waiting thread.
        capacity: Number of sends that may be unfinished; a thread that adds one more blocks.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self._capacity = capacity
        self._waits: deque[Callable[[], None]] = deque()
        self._error: Exception | None = None
        self._closed = False
        self._last: Callable[[], Callable[[], None]] | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, begin: Callable[[], Callable[[], None]], timeout_s: float) -> None:
        """Start a send, once there is room.

        Args:
            begin: Starts the send and returns a function that waits until it is finished.
            timeout_s: How long to wait for room.

        Raises:
            TimeoutError: There was no room in time.
            Exception: The error of an earlier send, or that given to ``fail``.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._error or len(self._waits) < self._capacity, timeout_s
            ):
                raise TimeoutError
            if self._error is not None:
                raise self._error
        wait = begin()
        with self._changed:
            self._waits.append(wait)
            self._changed.notify_all()

    @property
    def full(self) -> bool:
        """True if adding a send would block."""
        with self._changed:
            return len(self._waits) >= self._capacity

    def close(self, last: Callable[[], Callable[[], None]] | None = None) -> None:
        """End the thread after the sends that have started and a last one.

        Args:
            last: Starts the last send, also if ``fail`` was called, and returns a function that
                waits until it is finished.
        """
        with self._changed:
            self._last, self._closed = last, True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; return True if it came in time."""
        self._thread.join(max(timeout_s, 0))
        return not self._thread.is_alive()

    def fail(self, error: Exception) -> None:
        """Raise this error in all calls of ``add``, now and later."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (wait := self._next_wait()) is not None:
                wait()
                with self._changed:
                    self._waits.popleft()
                    self._changed.notify_all()
            if self._last is not None:
                self._last()()
        except Exception as error:
            self.fail(error)

    def _next_wait(self) -> Callable[[], None] | None:
        """Wait for a send that has started and return its wait; None once there are no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waits or self._closed)
            return self._waits[0] if self._waits else None
