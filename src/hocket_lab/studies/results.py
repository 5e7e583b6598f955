"""Results of the runs of a study, as far as they are known, and the runs that it needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hocket.files import read_json
from hocket.runs.read_folder import reading_run
from hocket_lab.studies.curve import Point, StageError, read_curve, read_gradient_error
from hocket_lab.studies.rows import Row, Run
from hocket_lab.studies.run_folder import RunResult, read_result
from hocket_lab.studies.selection import best_rate
from hocket_lab.studies.study import Study

NOT_FINITE = "its last {} is NaN or infinite"
"""Message of a run that has finished, and that counts as diverged by a metric."""


@dataclass(frozen=True)
class RunSource:
    """Code and machine that made a run.

    Attributes:
        commit: Commit of the checkout; None outside of one.
        dirty: True if files differed from it; None outside of a checkout.
        torch: Version of PyTorch.
        cpu: Name of the processor.
        gpu: Name of the GPU that it was trained on; None if it was trained on the processor.
    """

    commit: str | None = None
    dirty: bool | None = None
    torch: str = ""
    cpu: str = ""
    gpu: str | None = None


@dataclass(frozen=True)
class RunOutcome:
    """A run, its result, and what it measured.

    Attributes:
        run: The run.
        result: Its result; None if it has not ended.
        curve: Its metrics at each evaluation.
        gradient_error: Error of the gradients of each stage; empty if it was not measured.
        source: Code and machine that made it.
        last: Last value of the metric that the study compares: infinity if the run diverged,
            None if it has not ended or failed.
    """

    run: Run
    result: RunResult | None
    curve: tuple[Point, ...] = ()
    gradient_error: tuple[StageError, ...] = ()
    source: RunSource = RunSource()
    last: float | None = None


def read_outcome(runs: Path, run: Run, metric: str) -> RunOutcome:
    """Read the outcome of a run from its folder.

    Args:
        runs: Folder of the run folders.
        run: The run.
        metric: Metric that the study compares.

    Raises:
        RunFolderError: Its result or its metrics are damaged.
    """
    folder = runs / run.name
    if (result := read_result(folder)) is None:
        return RunOutcome(run, None)
    with reading_run(folder):
        curve = tuple(read_curve(folder, run.config))
        errors = tuple(read_gradient_error(folder))
    source = read_source(folder, run.config.device)
    return judge_run(RunOutcome(run, result, curve, errors, source), metric)


def judge_run(outcome: RunOutcome, metric: str) -> RunOutcome:
    """Return the outcome of a run that has ended, judged by its last value of a metric."""
    result, curve, last = outcome.result, outcome.curve, None
    assert result is not None, "it has ended"
    if result.state == "diverged":
        last = math.inf
    elif result.state == "finished":
        last = curve[-1].value(metric) if curve else None
        if last is None:
            result = RunResult("failed", f"it ended without a {metric} to compare")
        elif math.isinf(last):
            result = RunResult("diverged", NOT_FINITE.format(metric))
        elif math.isinf(curve[-1].test_loss or 0.0):  # such as one of an error all the same
            last, result = math.inf, RunResult("diverged", NOT_FINITE.format("test_loss"))
    return replace(outcome, result=result, last=last)


def read_source(folder: Path, device: str) -> RunSource:
    """Return what the folder of a run says about code and machine; nothing if it does not.

    A machine with a GPU may have trained on its processor, as the device of the run says.
    """
    try:
        found = read_json(folder / "environment.json")
        machine = found["machine"]
        return RunSource(
            found["commit"],
            found["dirty"],
            found["versions"]["torch"],
            machine["cpu"],
            machine["gpu"] if device.startswith("cuda") else None,
        )
    except (OSError, ValueError, TypeError, KeyError):
        return RunSource()


class RowResults:
    """Results of one row, as far as they are known.

    Args:
        study: The study.
        row: The row.
        outcomes: Outcomes of runs by their names, which change as the runs end.
    """

    def __init__(self, study: Study, row: Row, outcomes: Mapping[str, RunOutcome]) -> None:
        self.row = row
        self._seeds = study.seeds
        self._outcomes = outcomes
        self._sweep = {rate: study.sweep_runs(row, rate) for rate in row.rates}
        self._later = {rate: study.later_runs(row, rate) for rate in row.rates}

    @property
    def sweep(self) -> dict[float | None, list[RunOutcome]]:
        """Outcomes of the runs that compare learning rates, by rate."""
        return {
            rate: [self._outcomes[run.name] for run in runs]
            for rate, runs in self._sweep.items()
        }

    @property
    def best(self) -> tuple[float | None] | None:
        """Best learning rate, in a tuple; None if there is none, or none yet."""
        known = self.sweep_values
        if None in known:  # there is nothing to choose from
            return (None,)
        if any(len(known[rate]) < len(runs) for rate, runs in self._sweep.items()):
            return None
        rate = best_rate({rate: each for rate, each in known.items() if rate is not None})
        return None if rate is None else (rate,)

    @property
    def later(self) -> list[RunOutcome]:
        """Outcomes of the runs that the best learning rate alone has, once it is known."""
        if (best := self.best) is None:
            return []
        return [self._outcomes[run.name] for run in self._later[best[0]]]

    @property
    def sweep_values(self) -> dict[float | None, list[float]]:
        """Last values of the runs of the sweep that have ended, by learning rate."""
        return {
            rate: [each.last for each in outcomes if each.last is not None]
            for rate, outcomes in self.sweep.items()
        }

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
        if (best := self.best) is None:
            return []
        # Where examples are held out in the sweep, the later runs replace its runs.
        by_seed = {each.run.seed: each for each in (*self.sweep[best[0]], *self.later)}
        return [by_seed[seed] for seed in self._seeds]
