"""Folder of a launch, through which its processes communicate: the store, and small notes.

Notes are files rather than keys of the store: a process that is killed while it writes to the
store blocks all readers, and the launcher must never block.
"""

import os
from contextlib import suppress
from pathlib import Path

_ROOM = 4096
"""Bytes that must fit on the disk for the store to be of use."""


class LaunchFolder:
    """The folder of one launch; only its user can read it.

    Args:
        path: Path of the folder.

    Attributes:
        path: Path of the folder.
        rendezvous: The file behind the store of the processes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.rendezvous = self.path / "rendezvous"

    def mark_started(self, rank: int) -> None:
        """Record that this process has started, and is about to connect to the others."""
        self._write(f"started-{rank}", str(os.getpid()))

    def pid(self, rank: int) -> int | None:
        """Return the number of a process that has started; None for others."""
        number = self._read(f"started-{rank}")
        return int(number) if number else None

    def mark_joined(self, rank: int) -> None:
        """Record that a process is connected to all others, and all others to each other."""
        self._mark(f"joined-{rank}")

    def has_joined(self, rank: int) -> bool:
        """Return True if a process is connected to all others."""
        return (self.path / f"joined-{rank}").exists()

    def mark_silent(self, rank: int) -> None:
        """Record that a process does not answer: it is stopped, or blocks its interpreter."""
        self._mark(f"silent-{rank}")

    def is_silent(self, rank: int) -> bool:
        """Return True if a process does not answer."""
        return (self.path / f"silent-{rank}").exists()

    def mark_detached(self, rank: int) -> None:
        """Record that a process needs no process group from now on."""
        self._mark(f"detached-{rank}")

    def mark_reunited(self) -> None:
        """Record that all processes have joined again, for good."""
        self._mark("reunited")

    def all_detached(self, size: int) -> bool:
        """Return True while every process is detached, so that one may be replaced alone."""
        detached = all((self.path / f"detached-{rank}").exists() for rank in range(size))
        return detached and not (self.path / "reunited").exists()

    def mark_unrecoverable(self) -> None:
        """Record that no process replaces one that was killed."""
        self._mark("unrecoverable")

    @property
    def unrecoverable(self) -> bool:
        """True if no process replaces one that was killed."""
        return (self.path / "unrecoverable").exists() or not self.path.exists()

    def report_lost(self, message: str) -> None:
        """Tell the processes that one of them has died and could not say so itself."""
        self._write("lost", message)

    @property
    def lost(self) -> str | None:
        """Message about a process that has died; None if none has."""
        return self._read("lost")

    def report_symptom(self, message: str) -> None:
        """Keep what a process has seen of a failure that is hardly its own.

        It is printed by the launcher, and only if no process reports a cause: the store in
        which a cause is recorded may be slow.
        """
        self._write("symptom", message)

    @property
    def symptom(self) -> str | None:
        """Message of a process that saw a failure; None if none has."""
        return self._read("symptom")

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

    def _mark(self, name: str) -> None:
        with suppress(OSError):  # the launcher notices a full disk, or a folder that is gone
            (self.path / name).touch()

    def _write(self, name: str, text: str) -> None:
        with suppress(OSError):
            # Others may write at the same time.
            whole = self.path / f"{name}.{os.getpid()}.part"
            whole.write_text(text)
            whole.rename(self.path / name)

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text()
        except OSError:
            return None
