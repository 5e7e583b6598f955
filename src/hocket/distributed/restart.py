"""A training in several processes that is started again when one of them was lost or hung.

An error would come again, so it ends the training, as does whoever asks for an end. What a
process could not help is tried again, from the last checkpoint.
"""

import os
import signal
import warnings
from collections.abc import Callable, Mapping

from hocket.errors import HangError, PeerLostError, TransitError

ASKED = tuple(128 + n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""Exit codes of a launch that somebody has ended."""
UNMEETABLE = 72
"""Exit code of a launch whose processes can meet no more."""
LOST: Mapping[int, str] = {
    PeerLostError.exit_code: "a process was gone",
    HangError.exit_code: "a process hung",
    TransitError.exit_code: "a packet was lost or damaged",
    UNMEETABLE: "the folder in which processes meet was taken away",
}
"""What happened, by the exit codes of what need not come again."""


def describe_loss(code: int) -> str | None:
    """What a launch that ended so has lost, in words; None where a restart would not help.

    >>> loss(137), loss(75)
    ('a process was killed by SIGKILL', 'a process hung')
    >>> [loss(code) for code in (0, 1, 2, 130, 143)]
    [None, None, None, None, None]
    """
    if code > 128 and code not in ASKED:
        return f"a process was killed by {signal.Signals(code - 128).name}"
    return LOST.get(code)


class Restarts:
    """How often a job may be started again: as a whole, or one process of it alone.

    Args:
        most: How often altogether.

    >>> restarts = Restarts(2)
    >>> restarts.take(), str(restarts)
    (True, '1 of at most 2 times')
    >>> restarts.take(), restarts.take(), restarts.left
    (True, False, 0)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    @property
    def left(self) -> int:
        """How many may still be taken."""
        return self._most - self.taken

    def take(self) -> bool:
        """Take one, if one is left; whether it was."""
        if not self.left:
            return False
        self.taken += 1
        return True

    def __str__(self) -> str:
        return f"{self.taken} of at most {self._most} times"


def retry_after_loss(start: Callable[[bool], int], restarts: Restarts) -> int:
    """Start, and start all again after each loss; the last exit code.

    Args:
        start: Starts, or goes on from what is there, and gives the exit code.
        restarts: How often to start again; ``start`` may take some of them itself.
    """
    code = start(False)
    while (lost := describe_loss(code)) is not None and restarts.take():
        warnings.warn(
            f"{lost}; starting the whole job again from its last checkpoint, {restarts}",
            stacklevel=2,
        )
        code = start(True)
    return code


def restart_count() -> int:
    """How often torchrun has started its processes again; 0 where there is no torchrun."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def restarts_allowed() -> int:
    """How often torchrun may do so."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
