"""Folder of a launch, through which its processes communicate: the store, and small notes.

Notes are files rather than keys of the store: a process that is killed while it writes to the
store blocks all readers, and the launcher must never block.
"""

import os
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

_ROOM = 4096
"""Bytes that must fit on the disk for the store to be of use."""


class Note(StrEnum):
    """Notes of a launch, the first four of each process."""

    STARTED = "started"
    """The number of a process that has started, and is about to connect to the others."""
    JOINED = "joined"
    """The process is connected to all others, and all others to each other."""
    SILENT = "silent"
    """The process does not answer: it is stopped, or blocks its interpreter."""
    DETACHED = "detached"
    """The process needs no process group from now on."""
    REUNITED = "reunited"
    """All processes have joined again, for good."""
    UNRECOVERABLE = "unrecoverable"
    """No process replaces one that was killed."""
    LOST = "lost"
    """A message about a process that has died and could not say so itself."""
    SYMPTOM = "symptom"
    """What a process has seen of a failure that is hardly its own.

    The launcher prints it, and only if no process reports a cause: the store in which a cause
    is recorded may be slow.
    """


class LaunchFolder:
    """The folder of one launch; only its user can read it.

    Attributes:
        path: Path of the folder.
        rendezvous: The file behind the store of the processes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.rendezvous = self.path / "rendezvous"

    def write(self, note: Note, rank: int | None = None, text: str = "") -> None:
        """Write a note, unless the folder is gone or its disk full, which the launcher notices.

        Args:
            note: The note.
            rank: The process that it is about; None for a note about the launch.
            text: Its text.
        """
        with suppress(OSError):
            # Others may write at the same time.
            whole = self.path / f"{note}.{os.getpid()}.part"
            whole.write_text(text, "utf-8", "backslashreplace")
            whole.rename(self._file(note, rank))

    def read(self, note: Note, rank: int | None = None) -> str | None:
        """Return the text of a note; None if there is no such note."""
        try:
            return self._file(note, rank).read_text("utf-8")
        except OSError:
            return None

    def has(self, note: Note, rank: int | None = None) -> bool:
        """Return True if there is a note."""
        return self._file(note, rank).exists()

    def _file(self, note: Note, rank: int | None) -> Path:
        return self.path / (note if rank is None else f"{note}-{rank}")

    def all_detached(self, size: int) -> bool:
        """Return True while every process is detached, so that one may be replaced alone."""
        detached = all(self.has(Note.DETACHED, rank) for rank in range(size))
        return detached and not self.has(Note.REUNITED)

    def find_problem(self) -> OSError | None:
        """Return the reason why nothing can be written here; None if it can."""
        probe = self.path / "probe"
        try:
            probe.write_bytes(bytes(_ROOM))
        except OSError as error:
            return error
        finally:
            with suppress(OSError):
                probe.unlink()
        return None
