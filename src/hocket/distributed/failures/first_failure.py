"""The first failure of a training, in the store that all its processes read.

What is known of an error is kept with the error: it holds the frames that raised it, and with
them all that is trained there.
"""

import traceback

from torch.distributed.distributed_c10d import Store

from hocket.distributed.failures.store_client import StoreClient
from hocket.errors import HocketError, PeerFailedError

FAILURE_KEY = "failure"
"""Key of the text of the first failure."""
RECORD_TIMEOUT_S = 2.5
"""Seconds in which a failure must be recorded, also by a store that is slow at the moment.

A process that gives up reports its own failure, which is seldom the cause; one that waits
longer is killed by the launcher.
"""
_MARKS = "_hocket_marks"


def describe_failure(name: str, error: BaseException) -> str:
    """Return the text that the other processes get of an error: its message, no traceback."""
    text = "".join(traceback.format_exception_only(error)).rstrip()
    # A store takes no half of a character, such as a tokenizer may leave in a text.
    return f"{name} failed: {text.encode(errors='backslashreplace').decode()}"


def record_first_failure(store: Store, message: str) -> str:
    """Record a failure unless another one was recorded before; return the first one."""
    return str(store.compare_set(FAILURE_KEY, "", message).decode())


def mark(error: BaseException, token: object) -> None:
    """Mark an error with an object."""
    vars(error).setdefault(_MARKS, []).append(token)


def is_marked(error: BaseException | None, token: object) -> bool:
    """Return True if an error is marked with an object, or one from which it follows."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if any(known is token for known in vars(each).get(_MARKS, ())):
            return True
        waiting += [each.__cause__, each.__context__]
    return False


class FailureRecord:
    """Record of the first failure of a training, and of this process's part in it.

    Args:
        store: Store that all processes of the training read and write.
        name: Name of this process.

    Attributes:
        known: Text of the first failure; None as long as this process knows of none.
        has_ended: True once this process has reported an error of the training.
    """

    def __init__(self, store: StoreClient, name: str) -> None:
        self.known: str | None = None
        self.has_ended = False
        self._store = store
        self._name = name
        self._mark = object()
        self._was_first = False

    def report(self, error: BaseException) -> bool:
        """Record why this process ends; return True if it is the first that failed."""
        if not self.has_ended:
            mark(error, self._mark)
        self.has_ended = True
        if not isinstance(error, PeerFailedError):
            self._record(describe_failure(self._name, error))
        return self._was_first

    def has_ended_by(self, error: BaseException) -> bool:
        """Return True for the error that was reported first, and for what follows from it."""
        return is_marked(error, self._mark)

    def error(self, kind: type[HocketError], message: str) -> HocketError:
        """Record a failure; return its error, or the first failure's if another came before.

        Args:
            kind: Type of the error.
            message: Its message.
        """
        first = self._record(message)
        return kind(message) if self._was_first else PeerFailedError(first)

    def _record(self, message: str) -> str:
        """Record a failure unless another one was recorded before; return the first one."""
        if self._was_first:
            return message
        recorded = self._store.insist(
            lambda store: record_first_failure(store, message), RECORD_TIMEOUT_S
        )
        first = recorded or self.known or message
        self._was_first = first == message
        return first
