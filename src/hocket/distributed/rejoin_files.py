"""Which processes of a launch are out on their own, as they and their launcher tell each other.

That is in empty files in the folder where they meet, and not in a store: one who is killed in
the middle of writing to that holds up its readers, and a launcher must wait for nobody.
"""

from contextlib import suppress
from pathlib import Path


class RejoinMarkers:
    """Where the processes of one launch are, as far as they have said.

    Args:
        folder: Where they meet.
        size: How many there are.
    """

    def __init__(self, folder: str, size: int) -> None:
        self._folder = Path(folder)
        self._out = [self._folder / f"out-{rank}" for rank in range(size)]
        self._met = self._folder / "met"
        self._gone = self._folder / "gone"

    def mark_detached(self, rank: int) -> None:
        """Say that a process goes on by itself from here on."""
        self._out[rank].touch()

    def mark_reunited(self) -> None:
        """Say that all are together again, for good."""
        self._met.touch()

    def mark_unrecoverable(self) -> None:
        """Say that nobody comes in the place of one that was killed."""
        with suppress(FileNotFoundError):  # the folder was taken away, which says the same
            self._gone.touch()

    @property
    def all_detached(self) -> bool:
        """Whether each of them goes on by itself, so that one may come back alone."""
        return all(file.exists() for file in self._out) and not self._met.exists()

    @property
    def unrecoverable(self) -> bool:
        """Whether nobody comes in the place of one that was killed."""
        return self._gone.exists() or not self._folder.exists()
