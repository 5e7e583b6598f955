"""How all processes learn that one of them has failed or hangs, and which it was.

When a process dies its neighbours see a closed connection, and theirs see them die: the first
message is seldom the cause. So whoever fails writes down why before it ends, in a store that
all can read; the first to write is the cause, and everyone else ends with its words. Whoever
waits too long asks all others what they are doing, and names the one at the end of the chain.
"""

import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from torch.distributed.distributed_c10d import Store

from hocket.errors import HangError, HocketError, PeerFailedError, PeerLostError

T = TypeVar("T")

FAILURE = "failure"
ASKED = "asked"
PATIENCE_S = 1.0
"""How long a failure may take to be read once a connection has been closed.

It is written before that; who is slower would be killed by a launcher before it can say whom
it lost.
"""
ANSWER_S = 3.0
"""How long an answer may take once it has been asked for."""
LEFT = (
    "it has left in good order; fit, evaluate and all else that needs every stage must be "
    "called in all processes"
)


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


ActivityReport = tuple[str, int | None, float]
"""What a process is doing, whom it waits for, and for how many seconds."""


class FailureDetector:
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
        self._was_first = False
        self._reachable = True  # the store, as far as is known
        self._listeners: list[Callable[[HocketError], None]] = []
        # How often to look whether somebody asks.
        self._look_s = min(1.0, timeout_s / 16)
        self._thread = threading.Thread(target=self._watch, name="hocket-alarm", daemon=True)
        self._thread.start()

    def set_activity(self, words: str) -> None:
        """Say what this process does from now on."""
        self._activity = Activity(words, None, time.monotonic())

    @contextmanager
    def waiting_for(self, words: str, waits_for: int | None) -> Iterator[None]:
        """Say what this process does inside, and whom it waits for; after an error it stays."""
        before = self._activity
        self._activity = Activity(words, waits_for, time.monotonic())
        yield
        self._activity = before

    def add_listener(self, hear: Callable[[HocketError], None]) -> None:
        """Have this called, in another thread, once any process has said that it failed."""
        self._listeners.append(hear)

    def announce_exit(self) -> None:
        """Say that this process takes no further part."""
        self._write(f"left/{self._rank}", "yes")

    def close(self) -> None:
        """Nothing can go wrong any more."""
        self._over.set()
        # A thread that asks a store while the interpreter ends would abort the process.
        self._thread.join(PATIENCE_S)

    def wait_for_all(self, name: str = "start", what: str = "build their Trainer") -> None:
        """Wait until all processes have come here, to do what is said.

        Raises:
            PeerFailedError: One of them has failed instead.
            HangError: One of them does not come.
        """
        self._write(f"here/{name}/{self._rank}", "yes")
        end = time.monotonic() + self.timeout_s
        missing = list(range(len(self._places)))
        while True:
            missing = [rank for rank in missing if self._read(f"here/{name}/{rank}") is None]
            if (first := self._read(FAILURE)) is not None:
                raise PeerFailedError(first)
            if not missing:
                return
            if time.monotonic() >= end:
                late = ", ".join(self._places[rank] for rank in missing)
                raise self._hang(f"all to {what}; {late} did not come so far")
            time.sleep(0.01)

    @property
    def first_failure(self) -> str | None:
        """Why the first process failed, if any has."""
        return self._read(FAILURE)

    def all_arrived(self, name: str) -> bool:
        """Whether all processes have come to a meeting."""
        return all(self._read(f"here/{name}/{rank}") for rank in range(len(self._places)))

    def withdraw(self, name: str) -> None:
        """This process has not come to a meeting, whoever had its place before."""
        self._in_time(lambda: self._store.delete_key(f"here/{name}/{self._rank}"))

    def report(self, error: BaseException) -> bool:
        """Write down why this process ends; whether it is the first that says so."""
        if not isinstance(error, PeerFailedError):
            self._first(describe_failure(self._places[self._rank], error))
        return self._was_first

    def peer_lost(self, rank: int | None, said: str) -> HocketError:
        """The error to raise when the connection to another process is gone, and said this."""
        end = time.monotonic() + PATIENCE_S
        while (first := self._read(FAILURE)) is None and time.monotonic() < end:
            time.sleep(0.05)
        if first is not None:
            return PeerFailedError(first)
        other = "another process" if rank is None else self._places[rank]
        why = "it did not say why: it was killed, or its machine or network failed"
        for left in range(len(self._places)) if rank is None else [rank]:
            if self._read(f"left/{left}") is not None:
                other, why = self._places[left], LEFT
        found = (
            f"the connection to {other} is gone, and {why} ({self._places[self._rank]} was "
            f"{self._activity.words})"
        )
        first = self._first(found)
        if not self._was_first:
            return PeerFailedError(first)
        error = PeerLostError(found)
        error.add_note(f"(the connection said: {said})")
        return error

    def peer_timed_out(self, rank: int, what: str) -> HocketError:
        """The error to raise when another process has let this one wait for too long."""
        answers = self._ask()
        seen = {self._rank}
        while rank in answers:
            seen.add(rank)
            _, further, _ = answers[rank]
            if further is None or further in seen:
                break
            rank = further
        return self._hang(f"{what}; {self._said(rank, answers)}")

    def peers_missing(self, words: str) -> HocketError:
        """The error to raise when all were to meet, doing this, and some did not come."""
        answers = self._ask()
        others = [rank for rank in range(len(self._places)) if rank != self._rank]
        missing = [r for r in others if r not in answers or answers[r][0] != words]
        return self._hang(f"all to meet; {self._said((missing or others)[0], answers)}")

    def store_timed_out(self) -> HocketError:
        """The error to raise when what all can read and write has not answered for too long."""
        return self._hang(
            "an answer of the store through which all meet: one may have been killed while it "
            "wrote there"
        )

    def _said(self, rank: int, answers: dict[int, ActivityReport]) -> str:
        if self._read(f"left/{rank}") is not None:
            return f"{self._places[rank]} is not there any more, and {LEFT}"
        if rank not in answers:
            return f"{self._places[rank]} does not answer: it is stopped, or cut off"
        words, _, seconds = answers[rank]
        return f"{self._places[rank]} has been {words} for {seconds:.0f} s"

    def _hang(self, what: str) -> HocketError:
        found = (
            f"{self._places[self._rank]} waited {self.timeout_s:g} s for {what}; if that is no "
            "hang, allow more with timeout_s"
        )
        first = self._first(found)
        return HangError(found) if self._was_first else PeerFailedError(first)

    def _ask(self) -> dict[int, ActivityReport]:
        """What every other process that still answers is doing."""
        self._write(ASKED, "now")
        left = {rank for rank in range(len(self._places)) if rank != self._rank}
        answers: dict[int, ActivityReport] = {}
        end = time.monotonic() + ANSWER_S
        while left and time.monotonic() < end:
            for rank in sorted(left):
                if (found := self._read(f"answer/{rank}")) is not None:
                    words, waits_for, seconds = json.loads(found)
                    answers[rank] = words, waits_for, seconds
                    left.discard(rank)
            time.sleep(self._look_s / 8)
        return answers

    def _watch(self) -> None:
        """Say what this process does once somebody asks, and pass on that one has failed."""
        answered = False
        while not self._over.wait(self._look_s):
            try:
                # In this thread, however long it takes: nobody waits for it.
                asked = not answered and self._found(ASKED) is not None
                first = self._found(FAILURE)
            except RuntimeError:
                return
            if asked:
                now = self._activity
                seconds = time.monotonic() - now.since
                answer = json.dumps([now.words, now.waits_for, seconds])
                self._write(f"answer/{self._rank}", answer)
                answered = True
            if first is not None:
                for hear in self._listeners:
                    hear(PeerFailedError(first))

    def _first(self, found: str) -> str:
        """What is written down as the first failure: this, unless another one was first."""
        if not self._was_first:
            first = self._in_time(lambda: write_first_failure(self._store, found)) or found
            self._was_first = first == found
            return first
        return found

    def _write(self, key: str, value: str) -> None:
        # If the store is gone, so is whoever could have read this.
        self._in_time(lambda: self._store.set(key, value))

    def _read(self, key: str) -> str | None:
        return self._in_time(lambda: self._found(key))

    def _found(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _in_time(self, ask: Callable[[], T]) -> T | None:
        """What the store answers in time; it is not asked again once it has not."""
        if not self._reachable:
            return None
        given, self._reachable = ask_store(ask)
        return given


def describe_failure(place: str, error: BaseException) -> str:
    """What the others are told of an error: its words, as the traceback stays where it was."""
    words = "".join(traceback.format_exception_only(error)).rstrip()
    return f"{place} failed: {words}"


def write_first_failure(store: Store, found: str) -> str:
    """What a store has as the first failure: this, unless there was another before."""
    return str(store.compare_set(FAILURE, "", found).decode())


def ask_store(ask: Callable[[], T]) -> tuple[T | None, bool]:
    """What a store answers, if it does, and whether it is within reach.

    A connection that was cut says nothing, and a store sets itself no limit.
    """
    given: list[T] = []

    def run() -> None:
        with suppress(RuntimeError):
            given.append(ask())

    thread = threading.Thread(target=run, name="hocket-store", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return given[0] if given else None, not thread.is_alive()
