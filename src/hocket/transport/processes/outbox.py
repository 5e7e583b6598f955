"""Outbox: sends that have started and not finished, limited in number."""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Outbox:
    """Queue of a few sends, started by one thread and waited for by another.

    A send of torch cannot be cancelled. The thread that starts sends therefore never waits for
    one itself.

    Args:
        name: Name of the waiting thread.
        capacity: Number of sends that may be unfinished; a thread that adds one more blocks.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self._room = threading.Semaphore(capacity)
        self._waits: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, begin: Callable[[], Callable[[], None]], timeout_s: float) -> None:
        """Start a send, once there is room.

        Args:
            begin: Starts the send and returns a function that waits until it is finished.
            timeout_s: How long to wait for room.

        Raises:
            TimeoutError: There was no room in time.
            Exception: The error of an earlier send.
        """
        if not self._room.acquire(timeout=timeout_s):
            raise TimeoutError
        try:
            if self._error is not None:
                raise self._error
            self._waits.put(begin())
        except BaseException:
            self._room.release()
            raise

    @property
    def full(self) -> bool:
        """True if adding a send would block."""
        if self._room.acquire(blocking=False):
            self._room.release()
            return False
        return True

    def close(self, begin: Callable[[], Callable[[], None]] = lambda: lambda: None) -> None:
        """End the thread after the sends that have started and a last one.

        Args:
            begin: Starts the last send once the others are finished; see `add`.
        """

        def last() -> None:
            begin()()

        self._waits.put(last)
        self._waits.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; return True if all sends have finished in time."""
        self._thread.join(max(timeout_s, 0))
        return not self._thread.is_alive() and self._error is None

    def _run(self) -> None:
        try:
            for wait in iter(self._waits.get, None):
                wait()
                self._room.release()
        except Exception as error:
            self._error = error
            self._room.release()
