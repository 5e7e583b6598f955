"""Barriers that all processes of a training reach before one of them goes on."""

import time
from collections.abc import Callable

from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.first_failure import FAILURE_KEY
from hocket.distributed.failures.phases import others
from hocket.errors import PeerFailedError


class Barriers:
    """Barriers by name, in the store of the processes.

    Args:
        failures: Failure detector of the world.
        rank: Rank of this process.
        size: Number of processes.
        find_lost: Returns the launcher's message about a process that has died, or None.
    """

    def __init__(
        self,
        failures: FailureDetector,
        rank: int,
        size: int,
        find_lost: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._failures = failures
        self._store = failures.store
        self._rank = rank
        self._size = size
        self._find_lost = find_lost

    def wait_for_all(
        self, barrier: str = "start", purpose: str = "build their Trainer"
    ) -> None:
        """Wait until all processes have reached a barrier.

        Args:
            barrier: Name of the barrier.
            purpose: The action of the processes there, for the error message.

        Raises:
            PeerFailedError: One of them has failed instead.
            HangError: One of them hangs.
        """
        arrived = False
        missing = list(range(self._size))
        awaited = f"all processes to {purpose}"
        activity, ranks = f"waiting for {awaited}", others(missing, self._rank)
        with self._failures.waiting_for(activity, ranks, awaited) as wait:
            while True:
                # Tell the others, and see who has arrived.
                arrived = arrived or self._store.set(self._key(barrier, self._rank), "yes")
                missing = [r for r in missing if self._store.get(self._key(barrier, r)) is None]

                # A process may die before any other has met it: no connection tells of that.
                if (first := self._store.get(FAILURE_KEY) or self._find_lost()) is not None:
                    raise PeerFailedError(first)
                if not missing:
                    return
                wait.look()
                time.sleep(0.01)

    def all_arrived(self, barrier: str) -> bool:
        """Return True if all processes have reached a barrier."""
        return all(self._store.get(self._key(barrier, rank)) for rank in range(self._size))

    def withdraw(self, barrier: str) -> None:
        """Delete the record that an earlier process of this rank has reached a barrier."""
        self._store.ask(lambda store: store.delete_key(self._key(barrier, self._rank)))

    def _key(self, barrier: str, rank: int) -> str:
        return f"arrived/{barrier}/{rank}"
