"""Progress of a training: a bar on a terminal, a line per epoch elsewhere."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """Display that is told of batches and epochs."""

    def batch(self, losses: Sequence[float]) -> None:
        """Count a batch that has entered; ``losses`` has the newest loss, if there is one."""

    def epoch(self, number: int, loss: float, error: float | None, skipped: int = 0) -> None:
        """Show an epoch that has ended.

        Args:
            number: Number of the epoch, from 0.
            loss: Mean training loss.
            error: Test error, a fraction; None without an evaluation.
            skipped: Batches that a stage has skipped.
        """


class NoProgress:
    """Display that shows nothing."""

    def batch(self, losses: Sequence[float]) -> None:
        """Show nothing."""

    def epoch(self, number: int, loss: float, error: float | None, skipped: int = 0) -> None:
        """Show nothing.

        Args:
            number: Number of the epoch, from 0.
            loss: Mean training loss.
            error: Test error, a fraction; None without an evaluation.
            skipped: Batches that a stage has skipped.
        """


class EpochLines:
    """Display of a line per epoch, for logs."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs

    def batch(self, losses: Sequence[float]) -> None:
        """Show nothing: batches are too many for a log."""

    def epoch(self, number: int, loss: float, error: float | None, skipped: int = 0) -> None:
        """Print the epoch.

        Args:
            number: Number of the epoch, from 0.
            loss: Mean training loss.
            error: Test error, a fraction; None without an evaluation.
            skipped: Batches that a stage has skipped.
        """
        line = _line(number, self._epochs, loss, error, skipped)
        print(line, file=sys.stderr, flush=True)


class ProgressBar:
    """Display of a bar over all batches, and of a line per epoch above it."""

    def __init__(self, bar: RichProgress, epochs: int, batches: int | None) -> None:
        self._bar = bar
        self._epochs = epochs
        total = epochs * batches if batches is not None else None
        self._task: TaskID = bar.add_task("training", total=total, loss="")

    def batch(self, losses: Sequence[float]) -> None:
        """Advance by a batch."""
        loss = f"loss {losses[-1]:.3f}" if losses else ""
        self._bar.update(self._task, advance=1, loss=loss)

    def epoch(self, number: int, loss: float, error: float | None, skipped: int = 0) -> None:
        """Print the epoch above the bar.

        Args:
            number: Number of the epoch, from 0.
            loss: Mean training loss.
            error: Test error, a fraction; None without an evaluation.
            skipped: Batches that a stage has skipped.
        """
        line = _line(number, self._epochs, loss, error, skipped)
        self._bar.console.print(line, highlight=False)


def _line(number: int, epochs: int, loss: float, error: float | None, skipped: int) -> str:
    rest = "" if error is None else f", test error {error:.2%}"
    rest += f", {skipped} batches skipped" if skipped else ""
    # Stages that run freely may need a few more than was foreseen.
    return f"epoch {number + 1}/{max(epochs, number + 1)}: training loss {loss:.4f}{rest}"


@contextmanager
def progress_bar(epochs: int, batches: int | None, *, shown: bool) -> Iterator[Progress]:
    """Context manager that gives the display that fits standard error.

    Args:
        epochs: Number of epochs.
        batches: Batches in an epoch; None if unknown.
        shown: False to show nothing.
    """
    console = Console(stderr=True)
    if not shown:
        yield NoProgress()
    elif not console.is_terminal:
        yield EpochLines(epochs)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=console) as bar:
            yield ProgressBar(bar, epochs, batches)
