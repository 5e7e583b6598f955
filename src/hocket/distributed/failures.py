"""Failure detection: every process learns which process failed or hangs first, and why.

When a process dies its neighbours see a closed connection, and their own neighbours then see
them die: the first message is seldom the cause. A process that fails therefore records why in
a store that all processes can read, before it ends. The first record is the cause, and every
other process ends with its text. A process that has waited for too long asks all others for
their current activity, follows the chain of waits, and names the process at its end.
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

FAILURE_KEY = "failure"
STATUS_REQUEST_KEY = "status-request"
STORE_TIMEOUT_S = 1.0
"""Seconds in which the store must answer, and a failed process must have recorded its failure.

The failure is recorded before the connection closes. A longer time would let the launcher kill
the process that waits for the record before it can report which process it lost.
"""
STATUS_TIMEOUT_S = 3.0
"""Seconds in which the other processes must answer a request for their status."""
EXITED = (
    "it has already left the training; call fit, evaluate and everything else that needs all "
    "stages in all processes"
)


@dataclass(frozen=True)
class Activity:
    """Current activity of a process.

    Attributes:
        description: Text for error messages, such as ``executing F1.4``.
        waits_for: The rank that the process waits for, or None.
        since_s: Start of the activity on the monotonic clock of this process, in seconds.
    """

    description: str
    waits_for: int | None
    since_s: float


ActivityReport = tuple[str, int | None, float]
"""Description of an activity, the rank waited for, and its duration in seconds."""


class FailureDetector:
    """Records and reports failures and hangs of the processes of one training.

    Args:
        store: Store that all processes of the training read and write.
        names: Name of the process of each rank, such as ``stage 1``.
        rank: Rank of this process.
        timeout_s: Seconds that a process may keep another one waiting.
    """

    def __init__(self, store: Store, names: list[str], rank: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._store = store
        self._names = names
        self._rank = rank
        self._activity = Activity("starting", None, time.monotonic())
        self._closed = threading.Event()
        self._was_first = False
        self._store_reachable = True  # as far as is known
        self._listeners: list[Callable[[HocketError], None]] = []
        # How often to look for status requests and failures.
        self._poll_s = min(1.0, timeout_s / 16)
        self._thread = threading.Thread(
            target=self._poll, name="hocket-failure-detector", daemon=True
        )
        self._thread.start()

    def set_activity(self, activity: str) -> None:
        """Set the activity that this process reports from now on."""
        self._activity = Activity(activity, None, time.monotonic())

    @contextmanager
    def waiting_for(self, activity: str, rank: int | None) -> Iterator[None]:
        """Context manager that reports an activity and the rank that this process waits for.

        After an error the activity stays as it is, so that the error message can name it.
        """
        before = self._activity
        self._activity = Activity(activity, rank, time.monotonic())
        yield
        self._activity = before

    def add_listener(self, listener: Callable[[HocketError], None]) -> None:
        """Call a function, in another thread, once any process has recorded a failure."""
        self._listeners.append(listener)

    def announce_exit(self) -> None:
        """Record that this process has left the training."""
        self._set(f"exited/{self._rank}", "yes")

    def close(self) -> None:
        """Stop the thread that answers status requests and passes failures on."""
        self._closed.set()
        # A thread that uses a store while the interpreter ends would abort the process.
        self._thread.join(STORE_TIMEOUT_S)

    def wait_for_all(
        self, barrier: str = "start", purpose: str = "build their Trainer"
    ) -> None:
        """Wait until all processes have reached a barrier.

        Args:
            barrier: Name of the barrier.
            purpose: The action of the processes there, for the error message.

        Raises:
            PeerFailedError: One of them has failed instead.
            HangError: One of them does not arrive in time.
        """
        self._set(f"arrived/{barrier}/{self._rank}", "yes")
        end = time.monotonic() + self.timeout_s
        missing = list(range(len(self._names)))
        while True:
            missing = [r for r in missing if self._get(f"arrived/{barrier}/{r}") is None]
            if (first := self._get(FAILURE_KEY)) is not None:
                raise PeerFailedError(first)
            if not missing:
                return
            if time.monotonic() >= end:
                late = ", ".join(self._names[rank] for rank in missing)
                have = "have" if len(missing) > 1 else "has"
                raise self._hang_error(f"all processes to {purpose}; {late} {have} not done so")
            time.sleep(0.01)

    @property
    def first_failure(self) -> str | None:
        """Reason for which the first process failed; None if none has."""
        return self._get(FAILURE_KEY)

    def all_arrived(self, barrier: str) -> bool:
        """Return True if all processes have reached a barrier."""
        return all(self._get(f"arrived/{barrier}/{rank}") for rank in range(len(self._names)))

    def withdraw(self, barrier: str) -> None:
        """Delete the record that an earlier process of this rank has reached a barrier."""
        self._ask(lambda: self._store.delete_key(f"arrived/{barrier}/{self._rank}"))

    def report(self, error: BaseException) -> bool:
        """Record why this process ends; return True if it is the first that failed."""
        if not isinstance(error, PeerFailedError):
            self._record(describe_failure(self._names[self._rank], error))
        return self._was_first

    def peer_lost(self, rank: int | None, reason: str) -> HocketError:
        """Return the error to raise when the connection to another process has closed.

        Args:
            rank: Rank of the other process; None if it is not known.
            reason: Message of the connection.
        """
        end = time.monotonic() + STORE_TIMEOUT_S
        while (first := self._get(FAILURE_KEY)) is None and time.monotonic() < end:
            time.sleep(0.05)
        if first is not None:
            return PeerFailedError(first)
        peer = "another process" if rank is None else self._names[rank]
        why = "it did not say why: it was killed, or its machine or network failed"
        for candidate in range(len(self._names)) if rank is None else [rank]:
            if self._get(f"exited/{candidate}") is not None:
                peer, why = self._names[candidate], EXITED
        message = (
            f"the connection to {peer} is gone, and {why} ({self._names[self._rank]} was "
            f"{self._activity.description})"
        )
        first = self._record(message)
        if not self._was_first:
            return PeerFailedError(first)
        error = PeerLostError(message)
        error.add_note(f"(the connection said: {reason})")
        return error

    def peer_timed_out(self, rank: int, awaited: str) -> HocketError:
        """Return the error to raise when this process has waited for another one for too long.

        Args:
            rank: Rank of the other process.
            awaited: What this process waits for, such as ``gradient 3 from stage 1``.
        """
        statuses = self._request_statuses()
        seen = {self._rank}
        while rank in statuses:
            seen.add(rank)
            _, next_rank, _ = statuses[rank]
            if next_rank is None or next_rank in seen:
                break
            rank = next_rank
        return self._hang_error(f"{awaited}; {self._describe_status(rank, statuses)}")

    def peers_missing(self, activity: str) -> HocketError:
        """Return the error to raise when some processes do not take part in a collective.

        Args:
            activity: Activity of the processes that do.
        """
        statuses = self._request_statuses()
        others = [rank for rank in range(len(self._names)) if rank != self._rank]
        missing = [r for r in others if r not in statuses or statuses[r][0] != activity]
        status = self._describe_status((missing or others)[0], statuses)
        return self._hang_error(f"all processes to take part in {activity}; {status}")

    def store_timed_out(self) -> HocketError:
        """Return the error to raise when the store has not answered for too long."""
        return self._hang_error(
            "an answer of the store that all processes share: a process may have been killed "
            "while it wrote there"
        )

    def _describe_status(self, rank: int, statuses: dict[int, ActivityReport]) -> str:
        if self._get(f"exited/{rank}") is not None:
            return f"{self._names[rank]} is not there any more: {EXITED}"
        if rank not in statuses:
            return f"{self._names[rank]} does not answer: it is stopped, or cut off"
        activity, _, seconds = statuses[rank]
        return f"{self._names[rank]} has been {activity} for {seconds:.0f} s"

    def _hang_error(self, awaited: str) -> HocketError:
        message = (
            f"{self._names[self._rank]} waited {self.timeout_s:g} s for {awaited}; if nothing "
            "hangs, increase timeout_s"
        )
        first = self._record(message)
        return HangError(message) if self._was_first else PeerFailedError(first)

    def _request_statuses(self) -> dict[int, ActivityReport]:
        """Ask every other process for its activity; return the answers by rank."""
        self._set(STATUS_REQUEST_KEY, "now")
        pending = {rank for rank in range(len(self._names)) if rank != self._rank}
        statuses: dict[int, ActivityReport] = {}
        end = time.monotonic() + STATUS_TIMEOUT_S
        while pending and time.monotonic() < end:
            for rank in sorted(pending):
                if (answer := self._get(f"status/{rank}")) is not None:
                    activity, waits_for, seconds = json.loads(answer)
                    statuses[rank] = activity, waits_for, seconds
                    pending.discard(rank)
            time.sleep(self._poll_s / 8)
        return statuses

    def _poll(self) -> None:
        """Answer a request for the status of this process, and pass on the first failure."""
        answered = False
        while not self._closed.wait(self._poll_s):
            try:
                # In this thread, without a limit of time: nobody waits for it.
                asked = not answered and self._read(STATUS_REQUEST_KEY) is not None
                first = self._read(FAILURE_KEY)
            except RuntimeError:
                return
            if asked:
                now = self._activity
                seconds = time.monotonic() - now.since_s
                status = json.dumps([now.description, now.waits_for, seconds])
                self._set(f"status/{self._rank}", status)
                answered = True
            if first is not None:
                for listener in self._listeners:
                    listener(PeerFailedError(first))

    def _record(self, message: str) -> str:
        """Record a failure unless another one was recorded before; return the first one."""
        if not self._was_first:
            first = self._ask(lambda: record_first_failure(self._store, message)) or message
            self._was_first = first == message
            return first
        return message

    def _set(self, key: str, value: str) -> None:
        # If the store is gone, so are the processes that could have read this.
        self._ask(lambda: self._store.set(key, value))

    def _get(self, key: str) -> str | None:
        return self._ask(lambda: self._read(key))

    def _read(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _ask(self, request: Callable[[], T]) -> T | None:
        """Return the answer of the store, or None; after a time-out it is not asked again."""
        if not self._store_reachable:
            return None
        answer, self._store_reachable = ask_store(request)
        return answer


def describe_failure(name: str, error: BaseException) -> str:
    """Return the text that the other processes get of an error: its message, no traceback."""
    text = "".join(traceback.format_exception_only(error)).rstrip()
    return f"{name} failed: {text}"


def record_first_failure(store: Store, message: str) -> str:
    """Record a failure unless another one was recorded before; return the first one."""
    return str(store.compare_set(FAILURE_KEY, "", message).decode())


def ask_store(request: Callable[[], T]) -> tuple[T | None, bool]:
    """Return the answer of a store, or None, and True if the store is within reach.

    The request runs in a thread: a connection that was cut reports nothing, and a store has no
    time limit of its own.
    """
    answers: list[T] = []

    def run() -> None:
        with suppress(RuntimeError):
            answers.append(request())

    thread = threading.Thread(target=run, name="hocket-store", daemon=True)
    thread.start()
    thread.join(STORE_TIMEOUT_S)
    return answers[0] if answers else None, not thread.is_alive()
