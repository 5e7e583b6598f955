"""Requests to a store with a time limit: a store has none.

A connection that was cut reports nothing, and a process that is killed while it writes to a
file blocks all readers.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from torch.distributed.distributed_c10d import Store

from hocket.distributed.failures.phases import RunningClock

T = TypeVar("T")
_LOOK_S = 0.1
"""How often a wait for the store reads its clock, in seconds."""
STORE_TIMEOUT_S = 1.0
"""Seconds in which the store must answer, and a failed process must have recorded its failure.

The failure is recorded before the connection closes. A longer time would let the launcher kill
the process that waits for the record before it can report which process it lost.
"""


class StoreThread(threading.Thread):
    """Thread that uses a store, and does not keep the process alive by itself."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)


def connect_again(store: Store) -> Store:
    """Return a store with the same content that answers while a thread waits in the first one.

    A TCP store has one connection for all threads, and a wait for a key blocks it.
    """
    again: Store = store.clone()  # type: ignore[attr-defined]  # missing in the stubs
    return again


def leave_store(timeout_s: float) -> None:
    """Wait until no thread uses a store.

    A thread that is in one when the interpreter ends would abort the process.

    Args:
        timeout_s: Seconds to wait; threads that the store has not answered then are left.
    """
    end_s = time.monotonic() + timeout_s
    for thread in threading.enumerate():
        if isinstance(thread, StoreThread):
            thread.join(max(0.0, end_s - time.monotonic()))


def ask_store(
    request: Callable[[], T], timeout_s: float | None = None
) -> tuple[T | None, threading.Thread]:
    """Return the answer of a store, or None, and the thread of the request.

    That thread lives on until the store answers. Time in which this process is suspended does
    not count: the store could not answer either, or this thread could not hear it.

    Args:
        request: Asks the store.
        timeout_s: Seconds to wait for the answer; ``STORE_TIMEOUT_S`` unless given.
    """
    limit_s = STORE_TIMEOUT_S if timeout_s is None else timeout_s
    answers: list[T] = []

    def run() -> None:
        # If the store is gone, so are the processes that could have read or written.
        with suppress(RuntimeError):
            answers.append(request())

    thread = StoreThread(run, "hocket-store")
    thread.start()
    clock = RunningClock(2 * _LOOK_S)
    while thread.is_alive() and (left_s := limit_s - clock.seconds) > 0:
        thread.join(min(left_s, _LOOK_S))
    return answers[0] if answers else None, thread


class StoreClient:
    """A store that is not asked again while it still owes an answer.

    Args:
        store: Store that all processes of the training read and write.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: threading.Thread | None = None

    @property
    def reachable(self) -> bool:
        """False while the store has not answered the last request."""
        return self._pending is None or not self._pending.is_alive()

    def ask(self, request: Callable[[Store], T], timeout_s: float | None = None) -> T | None:
        """Return the answer to a request, or None; one that hangs delays the next ones."""
        if not self.reachable:
            return None
        answer, self._pending = ask_store(lambda: request(self._store), timeout_s)
        return answer

    def insist(self, request: Callable[[Store], T], timeout_s: float) -> T | None:
        """Return the answer to a request that matters; wait for it, and for a missing one.

        Args:
            request: Asks the store.
            timeout_s: Seconds that all of it may take.
        """
        end = time.monotonic() + timeout_s
        if self._pending is not None:
            self._pending.join(timeout_s)
        return self.ask(request, max(0.0, end - time.monotonic()))

    def set(self, key: str, value: str) -> bool:
        """Set a key; return False if the store is slow, so that it has to be set again."""
        if not self.reachable:
            return False
        self.ask(lambda store: store.set(key, value))
        return self.reachable

    def get(self, key: str) -> str | None:
        """Return the value of a key; None if there is none, or no answer."""
        return self.ask(lambda store: read_key(store, key))


def read_key(store: Store, key: str) -> str | None:
    """Return the value of a key of a store, however long that takes; None if there is none."""
    return str(store.get(key).decode()) if store.check([key]) else None
