"""Restarts of a training in several processes after a process was lost or hung.

An exception would be raised again, so it ends the training, as a request of the user to stop
does. A loss that the training did not cause is followed by a restart from the last checkpoint.
"""

import os
import signal
from collections.abc import Callable, Mapping

from hocket.errors import HangError, PeerLostError, TransitError, WorldError, warn

STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)  # Windows has no SIGHUP
)
"""Signals by which somebody stops a training; SIGHUP comes when a terminal is closed."""
USER_STOP_CODES = tuple(128 + number for number in STOP_SIGNALS)
"""Exit codes of a launch that somebody has stopped."""
RENDEZVOUS_LOST = 72
"""Exit code of a launch to whose folder nothing can be written any more."""
RECOVERABLE_LOSSES: Mapping[int, str] = {
    PeerLostError.exit_code: "a process was gone",
    HangError.exit_code: "a process hung",
    TransitError.exit_code: "a packet was lost or damaged",
    RENDEZVOUS_LOST: "the folder in which processes meet was deleted, or its disk is full",
}
"""Descriptions, by exit code, of the losses after which a restart may help."""


def describe_loss(code: int) -> str | None:
    """Describe the loss that ended a launch by its exit code; None if a restart would not help.

    >>> describe_loss(137), describe_loss(75)
    ('a process was killed by SIGKILL', 'a process hung')
    >>> [describe_loss(code) for code in (0, 1, 2, 130, 143, 200, 255)]
    [None, None, None, None, None, None, None]
    """
    if code - 128 in signal.valid_signals() and code not in USER_STOP_CODES:
        return f"a process was killed by {signal_name(code - 128)}"
    return RECOVERABLE_LOSSES.get(code)


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals between the first and the last have none.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RestartBudget:
    """Number of restarts left to a job, of the whole job and of single processes together.

    >>> budget = RestartBudget(2)
    >>> budget.take(), str(budget)
    (True, '1 of at most 2 times')
    >>> budget.take(), budget.take(), budget.remaining
    (True, False, 0)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    @property
    def remaining(self) -> int:
        """Number of restarts that are left."""
        return self._limit - self.used

    def take(self) -> bool:
        """Use one restart; return False if none is left."""
        if not self.remaining:
            return False
        self.used += 1
        return True

    def __str__(self) -> str:
        return f"{self.used} of at most {self._limit} times"


def retry_after_loss(start: Callable[[bool], int], budget: RestartBudget) -> int:
    """Start a job, and restart all of it after each loss; return the last exit code.

    Args:
        start: Starts the job and returns its exit code; its argument is True if the job is to
            continue from its checkpoints.
        budget: Restarts that are left; ``start`` may use some of them itself.
    """
    code = start(False)
    while (loss := describe_loss(code)) is not None and budget.take():
        warn(f"{loss}; starting the whole job again from its last checkpoint, {budget}")
        code = start(True)
    return code


def torchrun_restart_count() -> int:
    """Return how many times torchrun has restarted its processes; 0 without torchrun."""
    return environment_number("TORCHELASTIC_RESTART_COUNT", 0)


def environment_number(name: str, default: int) -> int:
    """Return the whole number in an environment variable of torchrun's.

    Args:
        name: Name of the variable.
        default: The number if it is not set.

    Raises:
        WorldError: It is no whole number.
    """
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise WorldError(
            f"the environment variable {name} is {text!r}; set it to a whole number, as "
            "torchrun does, or unset it"
        ) from None
