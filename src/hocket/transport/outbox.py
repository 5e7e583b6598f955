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
        self._wait_until_at_most(self._capacity - 1, timeout_s)
        wait = begin()
        with self._changed:
            self._waits.append(wait)
            self._changed.notify_all()

    @property
    def full(self) -> bool:
        """True if adding a send would block."""
        with self._changed:
            return len(self._waits) >= self._capacity

    def drain(self, timeout_s: float) -> None:
        """Wait until all sends are finished.

        Raises:
            TimeoutError: They did not finish in time.
            Exception: The error of a send, or that given to ``fail``.
        """
        self._wait_until_at_most(0, timeout_s)

    def close(self, timeout_s: float) -> None:
        """End the thread after the sends that have started; wait for it at most this long."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def fail(self, error: Exception) -> None:
        """Raise this error in all calls of ``add`` and ``drain``, now and later."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _wait_until_at_most(self, count: int, timeout_s: float) -> None:
        """Wait until at most this many sends are unfinished.

        Raises:
            TimeoutError: More sends are unfinished after this time.
            Exception: A send failed; this is its error.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._error or len(self._waits) <= count, timeout_s
            ):
                raise TimeoutError
            if self._error is not None:
                raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waits or self._closed)
                if not self._waits:
                    return
                wait = self._waits[0]
            try:
                wait()
            except Exception as error:
                self.fail(error)
                return
            with self._changed:
                self._waits.popleft()
                self._changed.notify_all()
