"""The first failure of a training, in the store that all its processes read.

What is known of an error is kept with the error: it holds the frames that raised it, and with
them all that is trained there.
"""

import traceback

from torch.distributed.distributed_c10d import Store

FAILURE_KEY = "failure"
"""Key of the text of the first failure."""
_MARKS = "_hocket_marks"


def describe_failure(name: str, error: BaseException) -> str:
    """Return the text that the other processes get of an error: its message, no traceback."""
    text = "".join(traceback.format_exception_only(error)).rstrip()
    return f"{name} failed: {text}"


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
