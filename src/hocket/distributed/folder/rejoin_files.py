"""Marker files by which the processes of a launch tell when a killed one may be replaced.

They are empty files in the folder of the launch rather than keys of its store: a process that
is killed while it writes to the store blocks all readers, and the launcher must never block.
"""

from contextlib import suppress
from pathlib import Path


class RejoinMarkers:
    """Markers of one launch: detached processes, end of the elastic phase, no replacement.

    Args:
        folder: Folder of the launch.
        size: Number of processes.
    """

    def __init__(self, folder: str, size: int) -> None:
        self._folder = Path(folder)
        self._detached = [self._folder / f"detached-{rank}" for rank in range(size)]
        self._reunited = self._folder / "reunited"
        self._unrecoverable = self._folder / "unrecoverable"

    def mark_detached(self, rank: int) -> None:
        """Record that a process needs no process group from now on."""
        self._detached[rank].touch()

    def mark_reunited(self) -> None:
        """Record that all processes have joined again, for good."""
        self._reunited.touch()

    def mark_unrecoverable(self) -> None:
        """Record that no process replaces one that was killed."""
        with suppress(FileNotFoundError):  # the folder was deleted, which means the same
            self._unrecoverable.touch()

    @property
    def all_detached(self) -> bool:
        """True while every process is detached, so that one may be replaced alone."""
        return all(file.exists() for file in self._detached) and not self._reunited.exists()

    @property
    def unrecoverable(self) -> bool:
        """True if no process replaces one that was killed."""
        return self._unrecoverable.exists() or not self._folder.exists()
