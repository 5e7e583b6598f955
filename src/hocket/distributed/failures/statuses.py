"""Activities of the processes, which they tell each other through their store on request."""

import json
import time

from hocket.distributed.failures.phases import Phase, RunningClock, Status, others
from hocket.distributed.failures.store_client import StoreClient

STATUS_REQUEST_KEY = "status-requests"
STATUS_TIMEOUT_S = 5.0
"""Seconds in which the other processes must answer a request for their status."""


class Statuses:
    """Requests for the statuses of all processes, and the answers of this one.

    Args:
        store: Store that all processes of the training read and write.
        rank: Rank of this process.
        size: Number of processes.
        clock: Clock of this process.
        poll_s: Seconds after which a process looks for requests.
    """

    def __init__(
        self, store: StoreClient, rank: int, size: int, clock: RunningClock, poll_s: float
    ) -> None:
        self._store = store
        self._rank, self._size = rank, size
        self._clock = clock
        self._poll_s = poll_s
        self._answered = 0
        self._store.set(f"present/{rank}", "yes")

    def request(self) -> dict[int, Status] | None:
        """Ask every other process for its activity; return the answers by rank.

        A process that is not there yet is starting. None means that the store, through which
        all of them would answer, is slow.
        """
        statuses: dict[int, Status] = {}
        number = self._store.ask(lambda store: int(store.add(STATUS_REQUEST_KEY, 1)))
        if number is None:
            return None
        pending = set(others(range(self._size), self._rank))
        for rank in sorted(pending):
            if self._store.get(f"present/{rank}") is None and self._store.reachable:
                text, seconds = f"{Phase.STARTING}, without a Trainer yet,", self._clock.seconds
                statuses[rank] = Status(text, limit="slow_timeout_s", seconds=seconds)
                pending.discard(rank)
        end = self._clock.seconds + STATUS_TIMEOUT_S
        while pending and self._clock.seconds < end:
            for rank in sorted(pending):
                answered, *values = json.loads(self._store.get(f"status/{rank}") or "[0]")
                if answered >= number:
                    statuses[rank] = Status(**values[0])
                    pending.discard(rank)
            time.sleep(self._poll_s / 8)
        return statuses if self._store.reachable else None

    def answer(self, requested: int, status: Status) -> None:
        """Answer the newest request unless that was done.

        Args:
            requested: Number of the newest request.
            status: Status of this process.
        """
        if requested > self._answered:
            text = json.dumps([requested, status._asdict()])
            if self._store.set(f"status/{self._rank}", text):
                self._answered = requested
