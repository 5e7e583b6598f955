"""States of processes and of their threads, of which only Linux tells."""

import time
from contextlib import suppress
from pathlib import Path

GLOO_THREADS = "pt_gloo"
"""Beginning of the name of threads of PyTorch that execute collective operations."""
_LOOK_S = 0.01
_WORK_S = 1.0
"""Seconds in which a process that works gets at least a tick of processor time."""


def process_state(place: Path) -> str:
    """Return the letter for the state of a process, such as R, S or T; empty if it is unknown.

    Args:
        place: Folder of the process or thread below ``/proc``.
    """
    return _stat(place)[0]


def is_at_work(pid: int) -> bool:
    """Return True if the main thread of a process gets processor time, or waits for a disk."""
    thread = Path(f"/proc/{pid}/task/{pid}")
    state, before = _stat(thread)
    time.sleep(_WORK_S)
    return state == "D" or _stat(thread)[1] > before


def _stat(place: Path) -> tuple[str, int]:
    """Return the state of a process or thread and its ticks of processor time, if known."""
    try:
        # The name before it is in parentheses, and may contain any character.
        fields = (place / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[11]) + int(fields[12])


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
        asleep += 1
        for thread in Path("/proc/self/task").glob("*"):
            with suppress(OSError):  # it has just ended
                is_gloo = (thread / "comm").read_text().startswith(GLOO_THREADS)
                if is_gloo and process_state(thread) not in ("S", ""):
                    asleep = 0
