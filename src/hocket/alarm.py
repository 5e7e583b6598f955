"""How all processes learn that one of them has failed or hangs, and which it was.

When a process dies its neighbours see a closed connection, and theirs see them die: the first
message is seldom the cause. So whoever fails writes down why before it ends, in a store that
all can read; the first to write is the cause, and everyone else ends with its words. Whoever is
slow writes down at what, so that a process that waits too long can name the one it waits for.
"""

import json
import threading
import time
import traceback
from dataclasses import dataclass

from torch.distributed.distributed_c10d import Store

from hocket.errors import HangError, HocketError, LostError, WitnessError

FAILURE = "failure"
PATIENCE_S = 3.0
"""How long a failure may take to be written once a connection has been closed."""


@dataclass(frozen=True)
class Activity:
    """What a process is doing.

    Attributes:
        words: In words.
        waits_for: The rank it waits for, if it does.
        since: When it began, on this process's clock.
    """

    words: str
    waits_for: int | None
    since: float


class Alarm:
    """One process's view of what went wrong anywhere.

    Args:
        store: Where all processes can read and write.
        places: What the process of each rank is called, such as ``stage 1``.
        rank: Of this process.
        timeout_s: How long a process may let another one wait.
    """

    def __init__(self, store: Store, places: list[str], rank: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._store = store
        self._places = places
        self._rank = rank
        self._activity = Activity("starting", None, time.monotonic())
        self._over = threading.Event()
        threading.Thread(target=self._publish, name="hocket-alarm", daemon=True).start()

    def doing(self, words: str, waits_for: int | None = None) -> None:
        """Say what this process does from now on."""
        self._activity = Activity(words, waits_for, time.monotonic())

    def close(self) -> None:
        """Nothing can go wrong any more."""
        self._over.set()

    def report(self, error: BaseException) -> None:
        """Write down why this process ends, unless another one failed before."""
        if isinstance(error, WitnessError):
            return
        text = "".join(traceback.format_exception(error)).rstrip()
        self._first(f"{self._places[self._rank]} failed:\n{text}")

    def lost(self, rank: int | None, why: Exception) -> HocketError:
        """The error to raise when the connection to another process is gone."""
        if (first := self._failure(PATIENCE_S)) is not None:
            return WitnessError(first)
        other = "another process" if rank is None else self._places[rank]
        found = (
            f"the connection to {other} is gone, and it did not say why: it was killed, or its "
            f"machine or network failed ({self._places[self._rank]} was "
            f"{self._activity.words}; {str(why).splitlines()[0]})"
        )
        first = self._first(found)
        return LostError(found) if first == found else WitnessError(first)

    def silent(self, rank: int, what: str) -> HocketError:
        """The error to raise when another process has let this one wait for too long."""
        return self._hang(what, *self._trace(rank))

    def absent(self, words: str) -> HocketError:
        """The error to raise when all were to meet, doing this, and some did not come."""
        missing = [
            (rank, entry)
            for rank in range(len(self._places))
            if rank != self._rank and (entry := self._slow(rank)) != (words, None)
        ]
        if not missing:
            return self._hang("all to meet", self._rank, "met the others too late")
        return self._hang("all to meet", missing[0][0], self._said(missing[0][1]))

    def _hang(self, what: str, culprit: int, said: str) -> HocketError:
        found = (
            f"{self._places[self._rank]} waited {self.timeout_s:g} s for {what}; "
            f"{self._places[culprit]} {said}; if that is no hang, allow more time with timeout"
        )
        first = self._first(found)
        return HangError(found) if first == found else WitnessError(first)

    def _trace(self, rank: int) -> tuple[int, str]:
        """Who is at the end of the chain of those that wait, and what it does."""
        seen = {self._rank}
        while True:
            seen.add(rank)
            entry = self._slow(rank)
            if entry is None or entry[1] is None or entry[1] in seen:
                return rank, self._said(entry)
            rank = entry[1]

    def _said(self, entry: tuple[str, int | None] | None) -> str:
        if entry is None:
            return "does not say what it is doing: it is stopped, or cut off"
        words, _ = entry
        return f"has been {words} for more than {self._slow_s:g} s" if words else "is busy"

    def _slow(self, rank: int) -> tuple[str, int | None] | None:
        """What a process has been doing for long (no words: nothing), and for whom it waits."""
        entry = self._read(f"slow/{rank}")
        if entry is None:
            return None
        words, waits_for = json.loads(entry)
        return words, waits_for

    @property
    def _slow_s(self) -> float:
        return self.timeout_s / 4

    def _publish(self) -> None:
        """Write down what this process does whenever it takes long, and that it went on."""
        published: Activity | None = None
        key = f"slow/{self._rank}"
        try:
            self._store.set(key, json.dumps(["", None]))
            while not self._over.wait(self._slow_s / 4):
                now = self._activity
                if published is not None and now is not published:
                    published = None
                    self._store.set(key, json.dumps(["", None]))
                if published is None and time.monotonic() - now.since > self._slow_s:
                    published = now
                    self._store.set(key, json.dumps([now.words, now.waits_for]))
        except RuntimeError:
            return  # The store is gone, and with it whoever could have read this.

    def _failure(self, patience_s: float) -> str | None:
        """What the first process to fail wrote, if it does so in time."""
        end = time.monotonic() + patience_s
        while (found := self._read(FAILURE)) is None and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def _first(self, found: str) -> str:
        """What is written down as the first failure: this, unless another one was first."""
        try:
            return str(self._store.compare_set(FAILURE, "", found).decode())
        except RuntimeError:
            return found

    def _read(self, key: str) -> str | None:
        try:
            return self._store.get(key).decode() if self._store.check([key]) else None
        except RuntimeError:
            return None
