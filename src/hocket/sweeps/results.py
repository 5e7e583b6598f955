"""Results of the runs of a study, as far as they are known, and the runs that it needs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hocket.sweeps.curve import Point, StageError, read_curve, read_gradient_error
from hocket.sweeps.rows import Row, Run
from hocket.sweeps.run_folder import RunResult, read_result
from hocket.sweeps.selection import best_rate
from hocket.sweeps.study import Study


@dataclass(frozen=True)
class RunOutcome:
    """A run, its result, and what it measured.

    Attributes:
        run: The run.
        result: Its result; None if it has not ended.
        curve: Its metrics at each evaluation.
        gradient_error: Error of the gradients of each stage; empty if it was not measured.
        last: Last value of the metric that the study compares: infinity if the run diverged,
            None if it has not ended or failed.
    """

    run: Run
    result: RunResult | None
    curve: tuple[Point, ...]
    gradient_error: tuple[StageError, ...]
    last: float | None


def read_outcome(runs: Path, run: Run, metric: str) -> RunOutcome:
    """Read the outcome of a run from its folder.

    Args:
        runs: Folder of the run folders.
        run: The run.
        metric: Metric that the study compares.
    """
    folder = runs / run.name
    result = read_result(folder)
    curve = tuple(read_curve(folder, run.config)) if result is not None else ()
    last = None
    if result is not None and result.state == "diverged":
        last = math.inf
    elif result is not None and result.state == "finished":
        last = curve[-1].value(metric) if curve else None
        if last is None:
            result = RunResult("failed", f"it ended without a finite {metric} to compare")
    errors = tuple(read_gradient_error(folder)) if result is not None else ()
    return RunOutcome(run, result, curve, errors, last)


class RowResults:
    """Results of one row.

    Args:
        study: The study.
        row: The row.
        outcome: Returns the outcome of a run.
    """

    def __init__(self, study: Study, row: Row, outcome: Callable[[Run], RunOutcome]) -> None:
        self.row = row
        self._study = study
        seeds = study.sweep_seeds
        self.sweep = {
            rate: [outcome(row.run(rate, seed)) for seed in seeds] for rate in row.rates
        }
        self.best = self._choose()
        self.later = (
            [outcome(row.run(self.best[0], seed)) for seed in study.later_seeds]
            if self.best is not None
            else []
        )

    def _choose(self) -> tuple[float | None] | None:
        """Return the best learning rate, in a tuple; None if there is none, or none yet."""
        values = {rate: [each.last for each in outs] for rate, outs in self.sweep.items()}
        known = {rate: [v for v in each if v is not None] for rate, each in values.items()}
        if any(len(known[rate]) < len(values[rate]) for rate in values):
            return None
        if len(values) == 1:  # there is nothing to choose from, whatever became of its runs
            return (next(iter(values)),)
        return best_rate(known)

    @property
    def is_over(self) -> bool:
        """True if all runs of the row have ended, none of them by a failure."""
        return all(each.last is not None for each in self.outcomes)

    @property
    def outcomes(self) -> list[RunOutcome]:
        """Outcomes of all runs that the row needs as far as is known."""
        return [*(each for outcomes in self.sweep.values() for each in outcomes), *self.later]

    @property
    def chosen(self) -> list[RunOutcome]:
        """Outcomes at the best learning rate, by seed; nothing if there is none."""
        if self.best is None:
            return []
        by_seed = {each.run.seed: each for each in (*self.sweep[self.best[0]], *self.later)}
        return [by_seed[seed] for seed in self._study.seeds]
