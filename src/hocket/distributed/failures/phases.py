"""Phases of processes with their time limits, and the process at the end of a chain of waits.

A training step has the limit ``timeout_s``; every other phase has ``slow_timeout_s``. A process
that waits asks the others for their status after ``timeout_s``, and goes on waiting while the
one at the end of the chain is within the limit of its phase.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

LimitName: TypeAlias = Literal["timeout_s", "slow_timeout_s"]
"""Name of the option that limits a phase."""


class Phase(StrEnum):
    """Phases that are no training step, in the words of messages."""

    STARTING = "starting"
    CONNECTING = "connecting to the others"
    BUILDING = "building its stage"
    RESUMING = "loading a checkpoint"
    READING = "reading the data"
    EVALUATING = "evaluating"
    SAVING = "writing a checkpoint"


@dataclass(frozen=True)
class TimeLimits:
    """Seconds that a process may spend in one phase without any progress.

    Attributes:
        timeout_s: Limit of an action of a training step, and of a wait for another process.
        slow_timeout_s: Limit of every other phase.
    """

    timeout_s: float
    slow_timeout_s: float

    def of(self, name: LimitName) -> float:
        """Return the limit of a name, in seconds."""
        return self.timeout_s if name == "timeout_s" else self.slow_timeout_s


class Status(NamedTuple):
    """Activity of a process, as it tells others of it.

    Attributes:
        activity: Text for messages, such as ``executing F1.4``.
        waits_for: Ranks of the processes that it waits for; empty if it waits for none.
        limit: Option that limits the activity.
        seconds: Seconds without progress in it.
        idle: True if the code of the caller runs, between two calls of Hocket.
    """

    activity: str
    waits_for: tuple[int, ...] = ()
    limit: LimitName = "timeout_s"
    seconds: float = 0.0
    idle: bool = False


@dataclass(frozen=True)
class Verdict:
    """The process at the end of a chain of waits.

    Attributes:
        rank: Rank of that process.
        status: Its status; None if it does not answer.
        left_s: Seconds that are left to it; none if it hangs.
    """

    rank: int
    status: Status | None
    left_s: float


def judge(
    waiter: int, waiting: Status, statuses: Mapping[int, Status], limits: TimeLimits
) -> Verdict:
    """Follow the waits from a process to their end, and compare with the limit there.

    Processes that wait for each other hang once each of them has waited for the limit of the
    first wait.

    Args:
        waiter: Rank of the process at the beginning.
        waiting: Its status, a wait.
        statuses: Statuses of the others by rank; one that does not answer has none.
        limits: Limits of the phases.
    """
    chain: list[int] = []
    status = waiting
    while status.waits_for:
        # The first of the awaited processes that does not take part in the same wait.
        apart = (
            rank
            for rank in status.waits_for
            if rank not in statuses or statuses[rank].activity != status.activity
        )
        rank = next(apart, status.waits_for[0])
        if rank == waiter or rank in chain:
            seconds = min(statuses[member].seconds for member in chain)
            left_s = limits.of(waiting.limit) - seconds
            return Verdict(chain[-1], statuses[chain[-1]], left_s)
        chain.append(rank)
        if rank not in statuses:
            return Verdict(rank, None, 0.0)
        status = statuses[rank]
    return Verdict(chain[-1], status, limits.of(status.limit) - status.seconds)


class RunningClock:
    """Clock that stands still while the process is suspended.

    Read it at least every ``most_s`` seconds: a longer gap counts as ``most_s``.

    Args:
        most_s: Most seconds between two readings of a process that is not suspended.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._seconds = 0.0
        self._read_s = time.monotonic()
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds for which the process has run since the clock was made."""
        with self._lock:
            now = time.monotonic()
            self._seconds += min(now - self._read_s, self._most_s)
            self._read_s = now
            return self._seconds


def others(ranks: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return the ranks without one of them."""
    return tuple(other for other in ranks if other != rank)
