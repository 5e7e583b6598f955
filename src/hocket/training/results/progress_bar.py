"""Progress of a training: a bar on a terminal, a line per epoch elsewhere."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from hocket.standard_stream import StandardStream
from hocket.training.results.metrics import EvaluationResult
from hocket.training.results.plain_console import plain_console


@dataclass(frozen=True)
class Newest:
    """Newest numbers of a training.

    Attributes:
        loss: Newest loss; None without one.
        lr: Newest learning rate of the first stage that is known; None without one.
        samples_per_s: Samples in a second, since the current epoch began.
        stage: Stage whose local loss it is; None for the network's.
    """

    loss: float | None
    lr: float | None
    samples_per_s: float
    stage: int | None = None

    def __str__(self) -> str:
        parts = [] if self.loss is None else [f"loss {self.loss:.3f}{_owner(self.stage)}"]
        parts += [] if self.lr is None else [f"lr {self.lr:.3g}"]
        parts += [f"{self.samples_per_s:,.0f} samples/s"] if self.samples_per_s else []
        return ", ".join(parts)


@dataclass(frozen=True)
class EndedEpoch:
    """Numbers of an epoch that has ended.

    Attributes:
        number: Number of the epoch, from 0.
        loss: Mean training loss.
        evaluation: Result on the validation data; None without such data.
        skipped: Batches that a stage has skipped.
        stage: Stage whose local loss it is; None for the network's.
    """

    number: int
    loss: float
    evaluation: EvaluationResult | None = None
    skipped: int = 0
    stage: int | None = None

    def __str__(self) -> str:
        words = f"training loss {self.loss:.4f}{_owner(self.stage)}"
        if self.evaluation is not None:
            words += _error(self.evaluation) or f", test loss {self.evaluation.loss:.4f}"
        if self.skipped:
            words += f", {self.skipped} batch{'es' if self.skipped > 1 else ''} skipped"
        return words


def _owner(stage: int | None) -> str:
    """Return the owner of a loss as text; nothing for the network's."""
    return "" if stage is None else f" of stage {stage}"


ReadNewest: TypeAlias = Callable[[], Newest]
"""Reads the newest numbers, for which the device has to complete all its work."""
READ_EVERY_S = 0.25
"""Seconds between two readings that a bar shows."""


class Progress:
    """Display of batches and epochs; this one shows nothing."""

    def batch(self, read: ReadNewest) -> None:
        """Count a batch that has entered.

        Args:
            read: Reads the newest numbers from their device.
        """

    def epoch(self, ended: EndedEpoch) -> None:
        """Show an epoch that has ended."""

    def evaluation(self, updates: int, result: EvaluationResult) -> None:
        """Show an evaluation within an epoch.

        Args:
            updates: Updates done.
            result: Result on the validation data.
        """


class EpochLines(Progress):
    """Display of a line per epoch, for logs, in which batches would be too many."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs

    def epoch(self, ended: EndedEpoch) -> None:
        """See `Progress`."""
        # Stages that run freely may need a few more than was foreseen.
        epochs = max(self._epochs, ended.number + 1)
        self._print(f"epoch {ended.number + 1}/{epochs}: {ended}")

    def evaluation(self, updates: int, result: EvaluationResult) -> None:
        """See `Progress`."""
        self._print(f"update {updates}: test loss {result.loss:.4f}{_error(result)}")

    def _print(self, line: str) -> None:
        print_line(line)


def print_line(line: str) -> None:
    """Print a line on standard error; if that fails, the training goes on."""
    print(line, file=StandardStream("stderr"), flush=True)


def _error(result: EvaluationResult) -> str:
    """Return the end of a line with the test error; nothing if targets are no class numbers."""
    return "" if result.error is None else f", test error {result.error:.2%}"


class ProgressBar(EpochLines):
    """Display of a bar over all batches, and of a line per epoch above it."""

    def __init__(
        self, bar: RichProgress, epochs: int, total: int | None, completed: int
    ) -> None:
        super().__init__(epochs)
        self._bar = bar
        self._next_reading_s = -math.inf
        self._task: TaskID = bar.add_task(
            "training", total=total, completed=completed, newest=""
        )

    def batch(self, read: ReadNewest) -> None:
        """See `Progress`; the numbers are read once in `READ_EVERY_S` at most."""
        now = time.monotonic()
        if now < self._next_reading_s:
            self._bar.update(self._task, advance=1)
            return
        newest = read()
        self._next_reading_s = now + READ_EVERY_S if newest.loss is not None else now
        self._bar.update(self._task, advance=1, newest=str(newest))

    def _print(self, line: str) -> None:
        self._bar.console.print(line, highlight=False)


@contextmanager
def progress_bar(
    epochs: int, total: int | None, *, completed: int = 0, shown: bool
) -> Iterator[Progress]:
    """Context manager that gives the display that fits standard error.

    Args:
        epochs: Number of epochs.
        total: Batches of all epochs; None if unknown.
        completed: Batches done before it was resumed.
        shown: False to show nothing.
    """
    # Choose by the terminal; a log gets a line per epoch.
    console = plain_console("stderr")
    if not shown:
        yield Progress()
    elif not console.is_terminal:
        yield EpochLines(epochs)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[newest]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=console) as bar:
            yield ProgressBar(bar, epochs, total, completed)


@contextmanager
def activity(text: str, *, shown: bool = True) -> Iterator[None]:
    """Context manager that shows an activity before the first batch on a terminal.

    Args:
        text: The activity, such as "reading cifar10".
        shown: False to show nothing.
    """
    console = plain_console("stderr")
    if shown and console.is_terminal:
        with console.status(text):
            yield
    else:
        yield
