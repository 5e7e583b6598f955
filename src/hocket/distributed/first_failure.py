"""The first failure of a training, in the store that all its processes read."""

import traceback

from torch.distributed.distributed_c10d import Store

FAILURE_KEY = "failure"
"""Key of the text of the first failure."""


def describe_failure(name: str, error: BaseException) -> str:
    """Return the text that the other processes get of an error: its message, no traceback."""
    text = "".join(traceback.format_exception_only(error)).rstrip()
    return f"{name} failed: {text}"


def record_first_failure(store: Store, message: str) -> str:
    """Record a failure unless another one was recorded before; return the first one."""
    return str(store.compare_set(FAILURE_KEY, "", message).decode())
