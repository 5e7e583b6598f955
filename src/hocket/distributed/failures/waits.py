"""Waits for other processes: they go on for as long as no process hangs."""

import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, TypeVar

from hocket.distributed.failures.phases import Status
from hocket.distributed.failures.store_client import StoreThread
from hocket.errors import HocketError

T = TypeVar("T")
NOTICE_S = 5.0
"""Seconds after which a process says that others have not made the same call."""
Operation: TypeAlias = Any
"""An operation of gloo that is under way; torch names no public type for it."""
Finish: TypeAlias = Callable[[Operation], None]
"""Waits until an operation is done."""


class Examiner(Protocol):
    """The failure detector as a wait sees it."""

    slice_s: float
    """Seconds after which a wait has to look again."""

    @property
    def running_s(self) -> float:
        """Seconds for which this process has run."""

    @property
    def timeout_s(self) -> float:
        """Seconds after which a wait asks the others for the first time."""

    def raise_if_failed(self) -> None:
        """Raise the first failure of a process if one is known."""

    def examine(self, waiting: Status, awaited: str, waited_s: float) -> float:
        """Ask the others; return the seconds until the next question, or raise an error.

        Args:
            waiting: The wait.
            awaited: Text for the error.
            waited_s: Seconds that this process has waited.
        """

    def require_present(self, waiting: Status, awaited: str, number: int) -> None:
        """Raise an error if a process has left before a common operation.

        Args:
            waiting: The wait.
            awaited: Text for the error.
            number: Number of the operation.
        """

    def tell_of_idle(self, waiting: Status, awaited: str) -> None:
        """Warn if the process waited for runs the code of its caller."""

    def timed_out(self, waited_s: float, awaited: str) -> HocketError:
        """Return the error of a wait that has its own limit."""


class Wait:
    """A wait of this process for others, which ends in an error if one of them hangs.

    Args:
        failures: Failure detector of this process.
        status: The wait as others are told of it.
        awaited: Text for the error.
        number: Number of the common operation of all processes that it waits in; 0 if it waits
            for something else.
    """

    def __init__(
        self, failures: Examiner, status: Status, awaited: str, number: int = 0
    ) -> None:
        self._failures = failures
        self._status = status
        self._awaited = awaited
        self._number, self._notice_s = number, NOTICE_S if number else math.inf
        self._start_s = failures.running_s
        self._due_s = self._start_s + failures.timeout_s

    def restart(self) -> None:
        """Begin again, as the process waited for is known to be starting."""
        self._start_s = self._failures.running_s
        self._due_s = self._start_s + self._failures.timeout_s

    def look(self, most_s: float = math.inf) -> None:
        """Do nothing while the wait may go on; to be called at least every ``slice_s``.

        Args:
            most_s: Seconds after which it ends even if the others make progress.

        Raises:
            HocketError: A process has failed, hangs or does not answer.
        """
        self._failures.raise_if_failed()
        now_s = self._failures.running_s
        if now_s - self._start_s >= most_s:
            raise self._failures.timed_out(now_s - self._start_s, self._awaited)
        if self._number:
            self._failures.require_present(self._status, self._awaited, self._number)
        if now_s - self._start_s >= self._notice_s:
            self._notice_s = math.inf
            self._failures.tell_of_idle(self._status, self._awaited)
        if now_s >= self._due_s:
            left_s = self._failures.examine(self._status, self._awaited, now_s - self._start_s)
            self._due_s = self._failures.running_s + left_s

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


def finish_operation(wait: Wait, operation: Operation) -> None:
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

    wait.until(attempt)


def finish_call(wait: Wait, call: Callable[[], T]) -> T:
    """Return the result of a call without a time limit, as long as no process hangs.

    The call is made in a thread, which after an error of the wait lives on until the call ends.

    Raises:
        HocketError: A process has failed, hangs or does not answer.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    thread = StoreThread(run, "hocket-connecting")
    thread.start()

    def attempt(seconds: float) -> None:
        thread.join(seconds)
        if thread.is_alive():
            raise TimeoutError

    wait.until(attempt)
    return result.result()
