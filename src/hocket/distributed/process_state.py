"""States of processes and of their threads, of which only Linux tells."""

import time
from pathlib import Path

GLOO_THREADS = "pt_gloo"
"""Beginning of the name of threads of PyTorch that execute collective operations."""
_LOOK_S = 0.01


def process_state(place: Path) -> str:
    """Return the letter for the state of a process, such as R, S or T; empty if it is unknown.

    Args:
        place: Folder of the process or thread below ``/proc``.
    """
    try:
        # The name before it is in parentheses, and may contain any character.
        return (place / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def leave_gloo(timeout_s: float) -> None:
    """Wait until no thread of gloo has work.

    An operation that is done is let go by its thread a moment later, with its tensors, for
    which the thread needs the interpreter's lock. Asked for when the interpreter ends, that
    lock ends the thread inside PyTorch, which aborts the process.

    Args:
        timeout_s: The longest time to wait, in seconds.
    """
    end_s, asleep = time.monotonic() + timeout_s, 0
    while asleep < 2 and time.monotonic() < end_s:
        time.sleep(_LOOK_S)  # without that lock
        asleep = 0 if any(map(_works, Path("/proc/self/task").glob("*"))) else asleep + 1


def _works(thread: Path) -> bool:
    """Return True for a thread of gloo that is not asleep.

    Args:
        thread: Its folder below ``/proc``.
    """
    try:
        is_gloo = (thread / "comm").read_text().startswith(GLOO_THREADS)
    except OSError:  # it has just ended
        return False
    return is_gloo and process_state(thread) not in ("S", "")
