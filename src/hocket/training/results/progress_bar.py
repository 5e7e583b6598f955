"""Progress of a training: a bar on a terminal or in a notebook, and a line per epoch."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from hocket.standard_stream import StandardStream
from hocket.training.results.metrics import EvaluationResult
from hocket.training.results.plain_console import plain_console

READ_EVERY_S = 0.25
"""Seconds between two readings that a bar shows."""


class Progress:
    """Display of a line per epoch on standard error, and perhaps of a bar over all batches.

    Args:
        epochs: Number of epochs.
        shown: False to show nothing.
        bar: Bar with one task; None for none, as in logs, in which batches would be too many.
    """

    def __init__(self, epochs: int, *, shown: bool, bar: RichProgress | None = None) -> None:
        self._epochs = epochs
        self._shown = shown
        self._bar = bar
        self._next_reading_s = -math.inf

    def batch(self, read: Callable[[], str]) -> None:
        """Count a batch that has entered.

        Args:
            read: Returns the newest numbers, for which the device has to complete all its work;
                called once in `READ_EVERY_S` at most.
        """
        if self._bar is None:
            return
        now = time.monotonic()
        newest: dict[str, Any] = {}
        if now >= self._next_reading_s and (text := read()):
            self._next_reading_s = now + READ_EVERY_S
            newest = {"newest": text}
        self._bar.update(self._bar.task_ids[0], advance=1, refresh=bool(newest), **newest)

    def epoch(
        self,
        number: int,
        loss: float,
        evaluation: EvaluationResult | None = None,
        *,
        skipped: int = 0,
        owner: str = "",
    ) -> None:
        """Show an epoch that has ended.

        Args:
            number: Number of the epoch, from 0.
            loss: Mean training loss.
            evaluation: Result on the validation data; None without such data.
            skipped: Batches that a stage has skipped.
            owner: Stage whose local loss it is; empty for the network's.
        """
        words = f"training loss {loss:.4f}{owner}"
        if evaluation is not None:
            words += _error(evaluation) or f", test loss {evaluation.loss:.4f}"
        if skipped:
            words += f", {skipped} batch{'es' if skipped > 1 else ''} skipped"
        # Stages that run freely may need a few more than predicted.
        self._print(f"epoch {number + 1}/{max(self._epochs, number + 1)}: {words}")

    def evaluation(self, updates: int, result: EvaluationResult) -> None:
        """Show the result of an evaluation within an epoch, after so many updates."""
        self._print(f"update {updates}: test loss {result.loss:.4f}{_error(result)}")

    def _print(self, line: str) -> None:
        if self._bar is not None and not self._bar.disable:
            self._bar.console.print(line, highlight=False)
        elif self._shown:
            print_line(line)


class _NotebookBar(RichProgress):
    """Bar below the cell of a notebook, where IPython replaces it by its new state."""

    def __init__(self, *columns: ProgressColumn) -> None:
        from IPython.display import display

        super().__init__(*columns, disable=True)  # on the console
        self._output = display(self, display_id=True)

    def refresh(self) -> None:
        """Show the bar as it is now."""
        self._output.update(self)

    def stop(self) -> None:
        """Show the bar as it is at the end."""
        self.refresh()


def print_line(line: str) -> None:
    """Print a line on standard error; if that fails, the training goes on."""
    print(line, file=StandardStream("stderr"), flush=True)


def _error(result: EvaluationResult) -> str:
    """Return the end of a line with the test error; nothing if targets are no class numbers."""
    return "" if result.error is None else f", test error {result.error:.2%}"


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
    console = plain_console("stderr")
    if not (shown and (console.is_terminal or console.is_jupyter)):
        yield Progress(epochs, shown=shown)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[newest]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    in_notebook = console.is_jupyter
    bar = _NotebookBar(*columns) if in_notebook else RichProgress(*columns, console=console)
    with bar:
        bar.add_task("training", total=total, completed=completed, newest="")
        yield Progress(epochs, shown=True, bar=bar)


@contextmanager
def activity(text: str, *, shown: bool) -> Iterator[None]:
    """Context manager that shows an activity, such as "reading cifar10", on a terminal."""
    console = plain_console("stderr")
    with console.status(text) if shown and console.is_terminal else nullcontext():
        yield
