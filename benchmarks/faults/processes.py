"""Processes of this machine, as the kernel of Linux lists them."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def all_processes() -> Iterator[tuple[int, str, int, str]]:
    """Yield number, state, number of the parent, and session of each process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The name before it is in parentheses, and may contain any character.
            state, parent, _, session, *_ = stat.read_text().rpartition(")")[2].split()
            yield int(stat.parent.name), state, int(parent), session


def parent_of(pid: int) -> int:
    """Return the number of the parent of a process."""
    return next(parent for each, _, parent, _ in all_processes() if each == pid)


def children_of(pid: int) -> list[int]:
    """Return the numbers of the processes that a process has started."""
    return [each for each, _, parent, _ in all_processes() if parent == pid]


def wake_command(after_s: float, *pids: int) -> list[str]:
    """Return the command that continues stopped processes after some seconds.

    It does so three times, as the first may come before the stop.
    """
    go_on = f"kill -CONT {' '.join(map(str, pids))}"
    return ["sh", "-c", f"sleep {after_s}; {go_on}; sleep 0.1; {go_on}; sleep 0.1; {go_on}"]
