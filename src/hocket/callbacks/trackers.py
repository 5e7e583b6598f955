"""Services that keep the metrics of many trainings."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hocket.errors import warn


class Tracker(Protocol):
    """Service that gets the rows of metrics of one process.

    Attributes:
        title: Name of the service, for messages.
    """

    title: str

    def log(self, kind: str, values: Mapping[str, Any]) -> None:
        """Take a row of metrics.

        Args:
            kind: Kind of the row, such as ``backward``.
            values: Its values, as in ``metrics.jsonl``.
        """

    def close(self, *, failed: bool = False) -> None:
        """Send what is left, and end the run at the service.

        Args:
            failed: True if the training ended by an error.
        """


class Trackers:
    """Trackers of a process; one that fails is left out from then on.

    Args:
        trackers: The trackers.
    """

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = list(trackers)

    def log(self, kind: str, values: Mapping[str, Any]) -> None:
        """Pass a row on to all trackers."""
        for tracker in list(self._trackers):
            try:
                tracker.log(kind, values)
            except Exception as error:
                self._trackers.remove(tracker)
                _warn(tracker, error)

    def close(self, *, failed: bool = False) -> None:
        """Close all trackers."""
        for tracker in self._trackers:
            try:
                tracker.close(failed=failed)
            except Exception as error:
                _warn(tracker, error)


def _warn(tracker: Tracker, error: Exception) -> None:
    warn(
        f"{tracker.title} no longer accepts metrics ({type(error).__name__}: {error}); the "
        "training goes on without it",
    )
