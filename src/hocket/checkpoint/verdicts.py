"""Verdicts of rank 0 on checkpoints, as another process learns them: complete, or given up.

One thread asks the store for one checkpoint after the other, so that they are told in their
order, and no tick waits for the store.
"""

import shutil
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from hocket.checkpoint.directory import unfinished_path
from hocket.distributed.world.flags import StoreFlags
from hocket.errors import HocketError

POLL_S = 0.02
"""Seconds between two requests to the store."""


def complete_flag(flag: str) -> str:
    """Return the flag of rank 0 once a checkpoint is complete.

    >>> complete_flag("3")
    '3/complete'
    """
    return f"{flag}/complete"


def given_up_flag(flag: str) -> str:
    """Return the flag of rank 0 once it has removed a checkpoint, as a part is missing."""
    return f"{flag}/given-up"


class Verdicts:
    """Thread that learns what becomes of checkpoints whose parts this process has written.

    Args:
        folder: Folder of the checkpoints.
        flags: Flags of all processes.

    Attributes:
        complete: Checkpoints that are complete, in the order in which they were written; the
            writer of rank 0 adds those that it has completed itself.
    """

    def __init__(self, folder: Path, flags: StoreFlags) -> None:
        self.complete: SimpleQueue[Path] = SimpleQueue()
        self._folder = folder
        self._flags = flags
        # Names and flags of checkpoints, and events to set behind those before them.
        self._awaited: SimpleQueue[tuple[str, str] | threading.Event] = SimpleQueue()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def await_verdict(self, name: str, flag: str) -> None:
        """Ask for the verdict on a checkpoint, behind those on the checkpoints before it.

        Args:
            name: Name of the checkpoint.
            flag: Flag under which processes publish their digests of it.
        """
        if self._remove_given_up(name, flag):  # before this part was written
            return
        self._awaited.put((name, flag))
        if self._thread is None:
            thread = threading.Thread(target=self._follow, name="hocket-verdict", daemon=True)
            thread.start()  # first, as `close` in another thread joins only one that runs
            self._thread = thread

    def settle(self, timeout_s: float) -> None:
        """Wait until all requested verdicts are known, or for a time.

        Args:
            timeout_s: The longest time, in seconds.
        """
        if self._thread is None:
            return
        reached = threading.Event()
        self._awaited.put(reached)
        while self._thread.is_alive() and not reached.wait(min(POLL_S, timeout_s)):
            if (timeout_s := timeout_s - POLL_S) <= 0:
                return

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._awaited.put(threading.Event())  # it may wait for something to do
            self._thread.join()

    def _follow(self) -> None:
        with suppress(HocketError):  # the store hangs; the training is told by other means
            while not self._closed.is_set():
                awaited = self._awaited.get()
                if isinstance(awaited, threading.Event):
                    awaited.set()
                    continue
                while not self._learn(*awaited):
                    if self._closed.wait(POLL_S):
                        return

    def _learn(self, name: str, flag: str) -> bool:
        """Return True once rank 0 has completed a checkpoint or given it up, and act on it."""
        if self._flags.all_set(complete_flag(flag), ranks=[0]):
            self.complete.put(self._folder / name)
            return True
        return self._remove_given_up(name, flag)

    def _remove_given_up(self, name: str, flag: str) -> bool:
        given_up = self._flags.all_set(given_up_flag(flag), ranks=[0])
        if given_up:
            shutil.rmtree(unfinished_path(self._folder, name), ignore_errors=True)
        return given_up
