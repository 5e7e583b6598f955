"""Results that the record of a study keeps for runs whose folders are gone."""

import math
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from hocket.errors import RunFolderError
from hocket.files import read_json
from hocket_lab.studies.curve import Point, StageError
from hocket_lab.studies.results import NOT_FINITE, RunOutcome, RunSource, judge_run
from hocket_lab.studies.rows import Run
from hocket_lab.studies.run_folder import RunResult, State
from hocket_lab.studies.target import METRICS


class KeptRuns:
    """Runs of the last record in the folder of a study; none if there is no record.

    The name of a run follows from its configuration, so a run of a study that has changed since
    is never taken for another one.

    Raises:
        RunFolderError: The file is no record of a study.
    """

    def __init__(self, file: Path, metric: str) -> None:
        self._metric = metric
        self._file = file
        self._runs: dict[str, Mapping[str, Any]] = {}
        if file.exists():
            try:
                record = read_json(file, limit=sys.maxsize)
                runs = [run for row in record["rows"] for run in row["runs"]]
                runs += record.get("kept", [])
                self._runs = {Path(run["folder"]).name: run for run in runs}
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise self._unreadable(error) from error

    def find(self, run: Run) -> RunOutcome | None:
        """Return the outcome of a run that had ended without a failure; None without one.

        Raises:
            RunFolderError: The record does not say what became of the run.
        """
        values = self._runs.get(run.name)
        if values is None or not _has_ended(values):
            return None
        try:
            result = RunResult(values["state"], values["message"])
            points = list(values["curve"])
            # Judge it anew, perhaps by another metric; JSON has no infinity for this one.
            metrics = {NOT_FINITE.format(metric): metric for metric in METRICS}
            if metric := metrics.get(result.message):
                points[-1] = points[-1] | {metric: math.inf}
                result = RunResult("finished")
            curve = tuple(Point(**point) for point in points)
            errors = tuple(StageError(**each) for each in values["gradient_error"])
            source = RunSource(**values["source"])
            return judge_run(RunOutcome(run, result, curve, errors, source), self._metric)
        except (TypeError, LookupError) as error:
            raise self._unreadable(error) from error

    def besides(self, needed: Collection[str]) -> list[Mapping[str, Any]]:
        """Return the runs that had ended without a failure, but for some, as they are."""
        others = (run for name, run in self._runs.items() if name not in needed)
        return [run for run in others if _has_ended(run)]

    def _unreadable(self, error: Exception) -> RunFolderError:
        return RunFolderError(
            f"cannot read the runs of {str(self._file)!r}: {type(error).__name__}: {error}; "
            "move it away; ended runs whose folders are gone are then run again"
        )


def _has_ended(run: Mapping[str, Any]) -> bool:
    """Return True if a run of a record had ended without a failure."""
    return run.get("state") in {*get_args(State)} - {"failed"}
