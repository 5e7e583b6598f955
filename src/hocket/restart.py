"""A training in several processes that is started again when one of them was killed.

An error would come again, so it ends the training, as does whoever asks for an end. What a
process could not help is tried again, from the last checkpoint.
"""

import signal
import warnings
from collections.abc import Callable

ASKED = tuple(128 + n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""Exit codes of a launch that somebody has ended."""


def was_lost(code: int) -> bool:
    """Whether a launch ended because a process was killed, and nobody had asked for that.

    >>> [was_lost(code) for code in (0, 1, 2, 130, 137, 143)]
    [False, False, False, False, True, False]
    """
    return code > 128 and code not in ASKED


def persistently(start: Callable[[bool], int], most: int) -> int:
    """Start, and start again after each loss of a process; the last exit code.

    Args:
        start: Starts, or goes on from what is there, and gives the exit code.
        most: How often to start again.
    """
    code = start(False)
    for number in range(1, most + 1):
        if not was_lost(code):
            break
        warnings.warn(
            f"a process was killed by {signal.Signals(code - 128).name}; starting again from "
            f"the last checkpoint, {number} of at most {most} times",
            stacklevel=2,
        )
        code = start(True)
    return code
