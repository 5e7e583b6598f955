"""Failure detection: every process learns which process failed or hangs first, and why.

When a process dies its neighbours see a closed connection, and their own neighbours then see
them die: the first message is seldom the cause. A process that fails therefore records why in
a store that all processes can read, before it ends. The first record is the cause, and every
other process ends with its text. A process that has waited for too long asks all others for
their current activity, follows the chain of waits, and names the process at its end, unless
that one is within the time limit of its phase: then it waits on, and asks again later.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar

from torch import OutOfMemoryError
from torch.distributed.distributed_c10d import Store

from hocket.distributed.failures.first_failure import FAILURE_KEY, FailureRecord
from hocket.distributed.failures.phases import (
    LimitName,
    Phase,
    RunningClock,
    Status,
    TimeLimits,
    judge,
    others,
)
from hocket.distributed.failures.store_client import (
    STORE_TIMEOUT_S,
    StoreClient,
    StoreThread,
    read_key,
)
from hocket.errors import HangError, HocketError, PeerFailedError, PeerLostError, warn

T = TypeVar("T")
Operation: TypeAlias = Any
"""An operation of gloo that is under way; torch names no public type for it."""
Finish: TypeAlias = Callable[[Operation], None]
"""Waits until an operation is done."""
STATUS_REQUEST_KEY = "status-requests"
STATUS_TIMEOUT_S = 5.0
"""Seconds in which the other processes must answer a request for their status."""
NOTICE_S = 5.0
"""Seconds after which a process says that others have not made the same call."""
EXITED = (
    "it has already left the training; call fit, evaluate and everything else that needs all "
    "stages in all processes"
)


def means_loss(error: Exception) -> bool:
    """Return True for an error of PyTorch whose connection to another process is gone."""
    if isinstance(error, (HocketError, OutOfMemoryError)):
        return False
    # PyTorch raises this one in any line, when the worker of a loader ends.
    of_loader = str(error).startswith("DataLoader worker")
    return isinstance(error, (RuntimeError, OSError)) and not of_loader


@contextmanager
def naming_loss(lost_error: Callable[[str], HocketError]) -> Iterator[None]:
    """Context manager that raises what ``lost_error`` builds if its body loses a connection.

    Raises:
        Exception: The body's own error, if it is of something else.
    """
    try:
        yield
    except Exception as error:
        if not means_loss(error):
            raise
        raise lost_error(str(error)) from None


class FailureDetector:
    """Records and reports failures and hangs of the processes of one training.

    Args:
        store: Store that all processes of the training read and write.
        names: Name of the process of each rank, such as ``stage 1``.
        rank: Rank of this process.
        is_silent: Tells by its rank if a process that does not answer is not at work either.

    Attributes:
        record: Record of the first failure.
        store: Store, which is not asked again while it owes an answer.
        slice_s: Seconds after which a wait has to look again.
        operations: Number of common operations of all processes that this one has begun.
    """

    def __init__(
        self,
        store: Store,
        names: list[str],
        rank: int,
        limits: TimeLimits,
        *,
        is_silent: Callable[[int], bool] = lambda rank: True,
    ) -> None:
        # The processes, and what they share.
        self.limits = limits
        self.store = StoreClient(store)
        self.record = FailureRecord(self.store, names[rank])
        self._own_store = store  # for the thread that is not waited for
        self.names = names
        self._rank = rank
        self._is_silent = is_silent
        # How often to look for status requests and failures.
        self._poll_s = min(1.0, limits.timeout_s / 16)
        self.slice_s = self._poll_s / 2
        self._clock = RunningClock(2 * self._poll_s)
        self._begin(Status(Phase.STARTING, limit="slow_timeout_s", idle=True))
        self.operations = 0

        # A thread answers requests and looks for failures.
        self._closed = threading.Event()
        self._silent_since_s: float | None = None  # when the store did not answer
        self._answered = 0
        self.store.set(f"present/{rank}", "yes")
        self._thread = StoreThread(self._poll, "hocket-failure-detector")
        self._thread.start()

    @property
    def name(self) -> str:
        """Name of this process."""
        return self.names[self._rank]

    @property
    def running_s(self) -> float:
        """Seconds for which this process has run; they stand still while it is suspended."""
        return self._clock.seconds

    def set_activity(self, activity: str, *, slow: bool = False, idle: bool = False) -> None:
        """Set the activity that this process reports from now on.

        Args:
            activity: Text for error messages, such as ``executing F1.4``.
            slow: True for an activity that is no action of a training step.
            idle: True for the code of the caller.
        """
        limit: LimitName = "slow_timeout_s" if slow else "timeout_s"
        self._begin(Status(activity, limit=limit, idle=idle))

    def in_phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Return a context manager for a phase that is no training step."""
        return self._during(Status(phase, limit="slow_timeout_s"))

    def _begin(self, status: Status) -> None:
        """Begin another activity, which is progress."""
        self._begun = status, self._clock.seconds

    @contextmanager
    def _during(self, status: Status) -> Iterator[None]:
        """Context manager for an activity within another one, which begins again after it.

        After an error it stays the activity, so that the error message can name it.
        """
        before, _ = self._begun
        self._begin(status)
        yield
        self._begin(before)

    @property
    def activity(self) -> Status:
        """Activity of this process, with the seconds without progress."""
        status, since_s = self._begun
        return status._replace(seconds=self._clock.seconds - since_s)

    @contextmanager
    def waiting_for(
        self, activity: str, ranks: Sequence[int], awaited: str
    ) -> Iterator["Wait"]:
        """Context manager for a wait for other processes.

        Args:
            activity: Text by which others tell what this process is doing.
            ranks: Ranks of the processes that it waits for.
            awaited: Text for the error, such as ``gradient 3 from stage 1``.
        """
        status = Status(activity, tuple(ranks))
        with self._during(status):
            yield Wait(self, status, awaited)

    @contextmanager
    def collective(self, activity: str, ranks: Sequence[int]) -> Iterator[Finish]:
        """Context manager for operations of several processes.

        It gives a function that waits until an operation is done.

        Args:
            activity: Text for messages, the same in all of them.
            ranks: Ranks of all processes that take part.

        Raises:
            HocketError: A process has failed, hangs or is gone.
            Exception: The body's own error, if it is of something else.
        """
        awaited = f"all processes to take part in {activity}"
        self.operations += (common := len(ranks) == len(self.names))
        status = Status(activity, others(ranks, self._rank))
        with naming_loss(partial(self.peer_lost, None)), self._during(status):
            yield Wait(self, status, awaited, self.operations if common else 0).finish

    def connect(self, form: Callable[[], T]) -> T:
        """Return the process groups that a function forms, which all processes call.

        It is called in a thread, as it has no time limit. After an error of the wait the thread
        lives on until the call ends.

        Raises:
            HocketError: A process has failed, hangs or does not answer.
        """
        # Call it in a thread.
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(form())
            except BaseException as error:
                result.set_exception(error)

        thread = StoreThread(run, "hocket-connecting")

        # Wait as long as no process hangs.
        def attempt(seconds: float) -> None:
            thread.join(seconds)
            if thread.is_alive():
                raise TimeoutError

        everyone = others(range(len(self.names)), self._rank)
        with self.in_phase(Phase.CONNECTING):
            thread.start()
            waiting = Status(Phase.CONNECTING, everyone)
            Wait(self, waiting, "all processes to connect").until(attempt)
            return result.result()

    def announce_exit(self) -> None:
        """Record that this process has left the training."""
        self.store.set(f"exited/{self._rank}", str(self.operations))

    def close(self) -> None:
        """Stop the thread that answers status requests and looks for failures."""
        self._closed.set()
        self._thread.join(STORE_TIMEOUT_S)

    def peer_lost(self, rank: int | None, reason: str) -> HocketError:
        """Return the error to raise when the connection to another process has closed.

        Args:
            rank: Rank of the other process; None if it is not known.
            reason: Message of the connection.
        """
        end = time.monotonic() + STORE_TIMEOUT_S
        while (first := self.store.get(FAILURE_KEY)) is None and time.monotonic() < end:
            time.sleep(0.05)
        if first is not None:
            return PeerFailedError(first)
        peer = "another process" if rank is None else self.names[rank]
        why = "it did not say why: it was killed, or its machine or network failed"
        for candidate in range(len(self.names)) if rank is None else [rank]:
            if self.store.get(f"exited/{candidate}") is not None:
                peer, why = self.names[candidate], EXITED
        message = (
            f"the connection to {peer} is gone, and {why} ({self.name} was "
            f"{self.activity.activity})"
        )
        error = self.record.error(PeerLostError, message)
        if isinstance(error, PeerLostError):
            error.add_note(f"(the connection said: {reason})")
        return error

    def tell_of_idle(self, waiting: Status, awaited: str) -> None:
        """Warn if the process at the end of the wait runs its caller's code."""
        end = judge(self._rank, waiting, self._request_statuses() or {}, self.limits)
        if end.status is not None and end.status.idle:
            doing = f"{self.names[end.rank]} is {end.status.activity}"
            warn(f"{self.name} waits for {awaited}; {doing}, and has to make the same call")

    def raise_if_failed(self) -> None:
        """Raise the first failure if this process knows of one by now.

        Raises:
            PeerFailedError: A process has failed.
        """
        if self.record.known is not None:
            raise PeerFailedError(self.record.known)

    def examine(self, waiting: Status, awaited: str, waited_s: float) -> float:
        """Find out why a wait takes long.

        Args:
            waiting: The wait.
            awaited: Text for the error, such as ``gradient 3 from stage 1``.
            waited_s: Seconds that this process has waited.

        Returns:
            Seconds after which to ask again, if no process hangs.

        Raises:
            PeerFailedError: A process has failed.
            HangError: A process hangs, or does not answer.
        """
        # Ask the others what they do, and whether one has failed.
        statuses = self._request_statuses()
        if (first := self.store.get(FAILURE_KEY)) is not None:
            raise PeerFailedError(first)
        if statuses is None:
            self._silent_since_s = self._silent_since_s or self.running_s
            if self.running_s - self._silent_since_s < self.limits.timeout_s:
                return self._poll_s  # the others may well have answered
        self._silent_since_s, statuses = None, statuses or {}

        # Find the process at the end of the chain of waits, and judge it.
        verdict = judge(self._rank, waiting, statuses, self.limits)
        name, status = self.names[verdict.rank], verdict.status
        limit: LimitName = "timeout_s"
        if self.store.get(f"exited/{verdict.rank}") is not None:
            cause = f"{name} is not there any more: {EXITED}"
        elif status is None:
            if not self._is_silent(verdict.rank) and waited_s < self.limits.slow_timeout_s:
                return self.limits.timeout_s  # it holds the interpreter, as it reads data
            cause = f"{name} does not answer: it is stopped, or cut off"
        elif verdict.left_s > 0:
            return min(verdict.left_s, self.limits.timeout_s)
        else:
            cause = f"{name} has been {status.activity} for {status.seconds:.0f} s"
            limit = status.limit
        raise self.timed_out(waited_s, f"{awaited}; {cause}", limit)

    def timed_out(
        self, waited_s: float, awaited: str, limit: LimitName = "slow_timeout_s"
    ) -> HocketError:
        """Return the error to raise when this process has waited for too long.

        Args:
            waited_s: Seconds that this process has waited.
            awaited: Text for the error, such as ``stage 1 to come back``.
            limit: Option that limits the wait.
        """
        message = (
            f"{self.name} waited {waited_s:.0f} s for {awaited}; if nothing "
            f"hangs, increase {limit} ({self.limits.of(limit):g})"
        )
        return self.record.error(HangError, message)

    def _request_statuses(self) -> dict[int, Status] | None:
        """Ask every other process for its activity; return the answers by rank.

        A process that is not there yet is starting. None means that the store, through which
        all of them would answer, is slow.
        """
        # Make a new request.
        statuses: dict[int, Status] = {}
        number = self.store.ask(lambda store: int(store.add(STATUS_REQUEST_KEY, 1)))
        if number is None:
            return None

        # Answer for those that are not there yet.
        pending = set(others(range(len(self.names)), self._rank))
        for rank in sorted(pending):
            if self.store.get(f"present/{rank}") is None and self.store.reachable:
                text, seconds = f"{Phase.STARTING}, without a Trainer yet,", self._clock.seconds
                statuses[rank] = Status(text, limit="slow_timeout_s", seconds=seconds)
                pending.discard(rank)

        # Wait for the answers of the others.
        end = self._clock.seconds + STATUS_TIMEOUT_S
        while pending and self._clock.seconds < end:
            for rank in sorted(pending):
                answered, *values = json.loads(self.store.get(f"status/{rank}") or "[0]")
                if answered >= number:
                    statuses[rank] = Status(**values[0])
                    pending.discard(rank)
            time.sleep(self._poll_s / 8)
        return statuses if self.store.reachable else None

    def _poll(self) -> None:
        """Answer requests for the status of this process, and look for the first failure."""
        while not self._closed.wait(self._poll_s):
            try:
                # In this thread, without a limit of time: nothing waits for it.
                requested = int(read_key(self._own_store, STATUS_REQUEST_KEY) or 0)
                first = read_key(self._own_store, FAILURE_KEY)
                status = self.activity  # which reads the clock
                if requested > self._answered:
                    answer = json.dumps([requested, status._asdict()])
                    self._own_store.set(f"status/{self._rank}", answer)
                    self._answered = requested
            except RuntimeError:
                return
            if first is not None:
                self.record.known = first


class Wait:
    """A wait of this process for others, which ends in an error if one of them hangs.

    Args:
        status: The wait as others are told of it.
        awaited: Text for the error.
        number: Number of the common operation of all processes that it waits in; 0 if it waits
            for something else.
    """

    def __init__(
        self, failures: FailureDetector, status: Status, awaited: str, number: int = 0
    ) -> None:
        self._failures = failures
        self._status = status
        self._awaited = awaited
        self._number, self._notice_s = number, NOTICE_S if number else math.inf
        self.restart()

    def restart(self) -> None:
        """Begin again, as the process waited for is known to be starting."""
        self._start_s = self._failures.running_s
        self._due_s = self._start_s + self._failures.limits.timeout_s

    def look(self, most_s: float = math.inf) -> None:
        """Do nothing while the wait may go on; to be called at least every ``slice_s``.

        Args:
            most_s: Seconds after which it ends even if the others make progress.

        Raises:
            HocketError: A process has failed, hangs or does not answer.
        """
        failures, awaited = self._failures, self._awaited
        failures.raise_if_failed()
        now_s = failures.running_s
        if now_s - self._start_s >= most_s:
            raise failures.timed_out(now_s - self._start_s, awaited)

        # Refuse to wait for a process that has left before a common operation.
        for rank in self._status.waits_for if self._number else ():
            if int(failures.store.get(f"exited/{rank}") or self._number) < self._number:
                gone = f"{failures.names[rank]} is not there any more: {EXITED}"
                text = f"{failures.name} waits for {awaited}; {gone}"
                raise failures.record.error(PeerLostError, text)

        # Tell once that the caller of another process runs, and find out why it takes long.
        if now_s - self._start_s >= self._notice_s:
            self._notice_s = math.inf
            failures.tell_of_idle(self._status, awaited)
        if now_s >= self._due_s:
            left_s = failures.examine(self._status, awaited, now_s - self._start_s)
            self._due_s = failures.running_s + left_s

    def until(self, attempt: Callable[[float], T]) -> T:
        """Return the result of an attempt, which is repeated each time it times out.

        Args:
            attempt: Waits for the seconds that it is given, and raises TimeoutError then.

        Raises:
            HocketError: A process has failed, hangs or does not answer.
        """
        while True:
            with suppress(TimeoutError):
                return attempt(self._failures.slice_s)
            self.look()

    def finish(self, operation: Operation) -> None:
        """Wait until an operation is done, as long as no process hangs.

        Raises:
            RuntimeError: A connection is lost.
        """

        def attempt(seconds: float) -> None:
            limit = timedelta(seconds=seconds)
            try:
                operation.wait(limit)
            except RuntimeError:
                if not operation.is_completed():
                    raise TimeoutError from None
                # It has failed, or was completed just after the time had run out.
                operation.wait(limit)

        self.until(attempt)
