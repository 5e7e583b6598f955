"""Progress of a study: a line for each run that ends, on a terminal a bar for the others."""

import math
import time
from collections.abc import Hashable, Sequence
from typing import Self

from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hocket.methods import parse_method
from hocket.training.results.plain_console import plain_console
from hocket_lab.studies.curve import epoch_length
from hocket_lab.studies.pool import RunningRun
from hocket_lab.studies.results import RunOutcome
from hocket_lab.studies.rows import Run
from hocket_lab.studies.run_folder import newest_batch

INTERVAL_S = 1.0
"""Seconds between two looks at the runs."""
PACE_S = 600.0
"""Seconds of which the pace tells how long the rest will take."""


class SweepProgress:
    """Context manager that shows how far a study is, on standard error.

    Args:
        total: Number of runs of the study, as far as is known.
        done: Number of runs that have ended before.
        metric: Metric that the study compares.
        shown: False to show nothing.
    """

    def __init__(self, total: int, done: int, metric: str, *, shown: bool) -> None:
        self._total = total
        self._metric = metric
        self._shown = shown
        console = plain_console("stderr")
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
            speed_estimate_period=PACE_S,
        )
        self._tasks: dict[str, TaskID] = {}
        self._whole = self._bars.add_task("all runs", total=float(total), note="")
        self._done = done
        self._lengths: dict[Hashable, int] = {}  # batches of an epoch
        self._next_s = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        if self._done:
            self._print(f"{self._done} of {self._total} runs have ended before")
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def end(self, outcome: RunOutcome | None, run: Run, total: int) -> None:
        """Show a run that has ended.

        Args:
            outcome: Its outcome; None if it was stopped.
            run: The run.
            total: Number of runs; a row without a best learning rate needs fewer.
        """
        self._total = total
        if (task := self._tasks.pop(run.name, None)) is not None:
            self._bars.remove_task(task)
        if outcome is None or outcome.result is None:
            self._print(f"stopped: {run.title}")
            return
        self._done += 1
        if outcome.last is not None and math.isfinite(outcome.last):
            end = f"{self._metric} {outcome.last:.4f} after {outcome.curve[-1].seconds:.1f} s"
        else:
            end = f"{outcome.result.state}: {outcome.result.message}".partition("\n")[0]
        self._print(f"[{self._done}/{self._total}] {run.title}: {end}")

    def update(self, running: Sequence[RunningRun]) -> None:
        """Record how far the running runs are, and show it; once in `INTERVAL_S`."""
        if not self._shown or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + INTERVAL_S
        for each in running:
            share, loss = self._share(each)
            name = each.run.name
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(each.run.title, total=1.0, note="")
            note = "" if loss is None else f"loss {loss:.3f}"
            self._bars.update(self._tasks[name], completed=share, note=note)
        shares = sum(task.completed for task in self._bars.tasks if task.id != self._whole)
        self._bars.update(
            self._whole,
            total=float(self._total),
            completed=self._done + shares,
            note=f"{self._done} of {self._total}",
        )
        self._bars.refresh()

    def _share(self, each: RunningRun) -> tuple[float, float | None]:
        """Return the share of a run that is done, as far as is known, and its newest loss."""
        config = each.run.config
        if (newest := newest_batch(each.folder)) is None:
            return 0.0, None
        batch, loss = newest
        if config.updates:
            whole = config.updates * parse_method(config.method).accumulate
            return min(1.0, (batch + 1) / whole), loss
        key = (config.data, config.data_dir, config.hold_out, config.batch_size)
        if key not in self._lengths and (length := epoch_length(each.folder, config)):
            self._lengths[key] = length
        if (length := self._lengths.get(key)) is None:
            return 0.0, loss
        return min(1.0, (batch + 1) / (length * config.epochs)), loss

    def _print(self, line: str) -> None:
        if self._shown:
            self._bars.console.print(line, highlight=False, soft_wrap=True)
