"""Progress of a training: a bar on a terminal, a line per epoch elsewhere."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from hocket.training.standard_stream import StandardStream, plain_console

NewestLoss: TypeAlias = Callable[[], Sequence[float]]
"""Reads the newest loss, for which the device has to complete all its work."""
LOSS_EVERY_S = 0.25
"""Seconds between two losses that a bar shows."""


class Progress(Protocol):
    """Display that is told of batches and epochs."""

    def batch(self, newest_loss: NewestLoss) -> None:
        """Count a batch that has entered.

        Args:
            newest_loss: Reads the newest loss from its device; returns nothing without one.
        """

    def epoch(self, number: int, loss: float, error: float | None, skipped: int = 0) -> None:
        """Show an epoch that has ended.

        Args:
            number: Number of the epoch, from 0.
            loss: Mean training loss.
            error: Test error, a fraction; None without an evaluation.
            skipped: Batches that a stage has skipped.
        """

    def evaluation(self, updates: int, loss: float, error: float | None) -> None:
        """Show an evaluation within an epoch.

        Args:
            updates: Updates done.
            loss: Mean loss on the validation data.
            error: Test error, a fraction; None if targets are not class numbers.
        """


class NoProgress:
    """Display that shows nothing."""

    def batch(self, newest_loss: NewestLoss) -> None:
        """Show nothing.

        Args:
            newest_loss: Not called.
        """

    def epoch(self, number: int, loss: float, error: float | None, skipped: int = 0) -> None:
        """Show nothing.

        Args:
            number: Number of the epoch, from 0.
            loss: Mean training loss.
            error: Test error, a fraction; None without an evaluation.
            skipped: Batches that a stage has skipped.
        """

    def evaluation(self, updates: int, loss: float, error: float | None) -> None:
        """Show nothing.

        Args:
            updates: Updates done.
            loss: Mean loss on the validation data.
            error: Test error, a fraction; None if targets are not class numbers.
        """


class EpochLines:
    """Display of a line per epoch, for logs."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs

    def batch(self, newest_loss: NewestLoss) -> None:
        """Show nothing: batches are too many for a log.

        Args:
            newest_loss: Not called.
        """

    def epoch(self, number: int, loss: float, error: float | None, skipped: int = 0) -> None:
        """Print the epoch.

        Args:
            number: Number of the epoch, from 0.
            loss: Mean training loss.
            error: Test error, a fraction; None without an evaluation.
            skipped: Batches that a stage has skipped.
        """
        line = _line(number, self._epochs, loss, error, skipped)
        print(line, file=StandardStream("stderr"), flush=True)

    def evaluation(self, updates: int, loss: float, error: float | None) -> None:
        """Print the evaluation.

        Args:
            updates: Updates done.
            loss: Mean loss on the validation data.
            error: Test error, a fraction; None if targets are not class numbers.
        """
        line = _evaluation_line(updates, loss, error)
        print(line, file=StandardStream("stderr"), flush=True)


class ProgressBar:
    """Display of a bar over all batches, and of a line per epoch above it."""

    def __init__(self, bar: RichProgress, epochs: int, total: int | None) -> None:
        self._bar = bar
        self._epochs = epochs
        self._next_loss_s = -math.inf
        self._task: TaskID = bar.add_task("training", total=total, loss="")

    def batch(self, newest_loss: NewestLoss) -> None:
        """Advance by a batch, and show the newest loss from time to time.

        Args:
            newest_loss: Gives a loss once in `LOSS_EVERY_S` at most.
        """
        now = time.monotonic()
        if now < self._next_loss_s:
            self._bar.update(self._task, advance=1)
            return
        losses = newest_loss()
        loss = f"loss {losses[-1]:.3f}" if losses else ""
        self._next_loss_s = now + LOSS_EVERY_S if losses else now
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

    def evaluation(self, updates: int, loss: float, error: float | None) -> None:
        """Print the evaluation above the bar.

        Args:
            updates: Updates done.
            loss: Mean loss on the validation data.
            error: Test error, a fraction; None if targets are not class numbers.
        """
        self._bar.console.print(_evaluation_line(updates, loss, error), highlight=False)


def _evaluation_line(updates: int, loss: float, error: float | None) -> str:
    rest = "" if error is None else f", test error {error:.2%}"
    return f"update {updates}: test loss {loss:.4f}{rest}"


def _line(number: int, epochs: int, loss: float, error: float | None, skipped: int) -> str:
    rest = "" if error is None else f", test error {error:.2%}"
    rest += f", {skipped} batches skipped" if skipped else ""
    # Stages that run freely may need a few more than was foreseen.
    return f"epoch {number + 1}/{max(epochs, number + 1)}: training loss {loss:.4f}{rest}"


@contextmanager
def progress_bar(epochs: int, total: int | None, *, shown: bool) -> Iterator[Progress]:
    """Context manager that gives the display that fits standard error.

    Args:
        epochs: Number of epochs.
        total: Batches of all epochs; None if unknown.
        shown: False to show nothing.
    """
    console = plain_console("stderr")
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
            yield ProgressBar(bar, epochs, total)
