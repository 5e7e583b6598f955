"""A training in several processes that is started again when one of them was lost or hung.

An error would come again, so it ends the training, as does whoever asks for an end. What a
process could not help is tried again, from the last checkpoint.
"""

import os
import signal
import warnings
from collections.abc import Callable, Mapping

from hocket.errors import HangError, LostError, TransitError

ASKED = tuple(128 + n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""Exit codes of a launch that somebody has ended."""
LOST: Mapping[int, str] = {
    LostError.exit_code: "a process was gone",
    HangError.exit_code: "a process hung",
    TransitError.exit_code: "a packet was lost or damaged",
}
"""What happened, by the exit codes of errors that need not come again."""


def loss(code: int) -> str | None:
    """What a launch that ended so has lost, in words; None where a restart would not help.

    >>> loss(137), loss(75)
    ('a process was killed by SIGKILL', 'a process hung')
    >>> [loss(code) for code in (0, 1, 2, 130, 143)]
    [None, None, None, None, None]
    """
    if code > 128 and code not in ASKED:
        return f"a process was killed by {signal.Signals(code - 128).name}"
    return LOST.get(code)


def persistently(start: Callable[[bool], int], most: int) -> int:
    """Start, and start again after each loss; the last exit code.

    Args:
        start: Starts, or goes on from what is there, and gives the exit code.
        most: How often to start again.
    """
    code = start(False)
    for number in range(1, most + 1):
        if (lost := loss(code)) is None:
            break
        warnings.warn(
            f"{lost}; starting again from the last checkpoint, {number} of at most {most} "
            "times",
            stacklevel=2,
        )
        code = start(True)
    return code


def attempt() -> int:
    """How often torchrun has started its processes again; 0 where there is no torchrun."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def allowed() -> int:
    """How often torchrun may do so."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
