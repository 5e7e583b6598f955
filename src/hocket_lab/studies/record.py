"""Record of a study: a row for each of its rows, with all that its runs have measured."""

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hocket.errors import RunFolderError
from hocket.files import read_json, write_text_atomically
from hocket.runs.config import RunConfig, plain_values
from hocket.runs.environment import environment
from hocket_lab.studies.checks import grid_tables
from hocket_lab.studies.curve import first_reaching, mean_errors
from hocket_lab.studies.report import markdown
from hocket_lab.studies.results import RowResults, RunOutcome
from hocket_lab.studies.rows import choices
from hocket_lab.studies.selection import is_at_edge
from hocket_lab.studies.study import Study, own_choices
from hocket_lab.studies.target import METRICS, Target

FILE, REPORT, PICTURE = "record.json", "README.md", "curves.svg"
RUNS = "runs"
"""Folder of the run folders, in the study's folder."""
NAME = "sweep"
"""Name of the records of all studies; what they studied is in their settings."""


@dataclass(frozen=True)
class SweepRecord:
    """Record of a study, in its folder.

    Attributes:
        folder: Folder of the study.
        values: Command, commit, versions, machine, settings and rows, as plain JSON.
        orphans: Names of run folders that belong to no run of the study any more.
        stopped_by: Number of the signal that stopped the study; 0 if none did.
    """

    folder: Path
    values: dict[str, Any]
    orphans: tuple[str, ...] = ()
    stopped_by: int = 0

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the record."""
        rows: list[dict[str, Any]] = self.values["rows"]
        return rows

    @property
    def kept(self) -> list[dict[str, Any]]:
        """Runs that no row needs as the study is now, whose results are kept for later."""
        runs: list[dict[str, Any]] = self.values["kept"]
        return runs

    @property
    def failures(self) -> list[str]:
        """Descriptions of the runs that failed for another reason than divergence."""
        return [
            f"{row['row']}{_rate(run)}, seed {run['seed']}: {run['message']} "
            f"(see {self.folder / run['folder']})"
            for row in self.rows
            for run in row["runs"]
            if run["state"] == "failed"
        ]

    @property
    def unfinished(self) -> int:
        """Number of runs that have not ended."""
        return sum(run["state"] == "missing" for row in self.rows for run in row["runs"])

    def write(self) -> None:
        """Write ``record.json`` and the report ``README.md`` into the folder.

        Raises:
            RunFolderError: They cannot be written.
        """
        try:
            text = json.dumps(self.values, indent=1, allow_nan=False) + "\n"
            write_text_atomically(self.folder / FILE, text)
            has_picture = (self.folder / PICTURE).exists()
            shown = markdown(self.values, PICTURE if has_picture else None)
            write_text_atomically(self.folder / REPORT, shown)
        except OSError as error:
            raise RunFolderError(cannot_write_study(self.folder, error)) from error

    def _repr_markdown_(self) -> str:  # for notebooks
        return markdown(self.values, None)

    @staticmethod
    def read(folder: Path | str) -> "SweepRecord":
        """Read the record in the folder of a study.

        Raises:
            RunFolderError: There is none.
        """
        file = Path(folder) / FILE
        try:
            return SweepRecord(Path(folder), read_json(file, limit=sys.maxsize))
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"cannot read the record {str(file)!r} ({error}); give the folder of a study"
            ) from error


def _rate(run: Mapping[str, Any]) -> str:
    return "" if run["learning_rate"] is None else f", lr {run['learning_rate']:g}"


def cannot_write_study(folder: Path, error: OSError) -> str:
    """Return the message for the folder of a study that cannot be written."""
    return (
        f"cannot write the folder {str(folder)!r} of the study: {error.strerror or error}; "
        "make room there, or name another one with --out"
    )


def build_record(
    study: Study,
    folder: Path,
    rows: Sequence[RowResults],
    kept: Sequence[Mapping[str, Any]],
    orphans: Sequence[str],
    stopped_by: int,
) -> SweepRecord:
    """Build the record of a study from the results of its rows.

    Args:
        study: The study.
        folder: Its folder.
        rows: Results of its rows.
        kept: Runs of the record before that no row needs now, as they are there.
        orphans: Names of run folders that belong to no run of the study.
        stopped_by: Number of the signal that stopped the study; 0 if none did.
    """
    configs = [each.run.config for row in rows for each in row.outcomes]
    values = {
        "name": NAME,
        "command": study_command(study),
        **environment(max((config.threads for config in configs), default=1)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": _settings(study),
        "rows": [_row(study, row) for row in rows],
        "kept": list(kept),
    }
    return SweepRecord(folder, plain_values(values), tuple(orphans), stopped_by)


def study_command(study: Study) -> str:
    """Return the command that repeats a study, with DIR for the place of its data.

    A study that a program made has a call instead.
    """
    if study.file is None:
        return "hocket_lab.sweep(study)"
    options = ["--data-dir", "DIR"] if study.base.get("data_dir") else []
    for option, text in own_choices(study.as_dict()):
        options += [f"--{option}", text]
    return shlex.join(["hocket", "sweep", study.file.name, *options])


def _settings(study: Study) -> dict[str, Any]:
    """Return the values of the study; the folder of the data means nothing elsewhere."""
    settings = study.as_dict() | {"select": study.metric, "base": _without_data_dir(study.base)}
    tables = [_without_data_dir(table) for table in grid_tables(study.grid)]
    settings["grid"] = tables[0] if isinstance(study.grid, Mapping) else tables
    return settings


def _row(study: Study, results: RowResults) -> dict[str, Any]:
    """Return the row of the record of a row of the study."""
    rate = results.best[0] if results.best is not None else None
    chosen = results.chosen
    ended = [each for each in chosen if each.last is not None and math.isfinite(each.last)]
    complete = bool(chosen) and len(ended) == len(chosen)
    diverged = results.is_over and not complete
    if diverged:
        ended = []  # a mean over the runs that went well would say less than nothing
    errors = [error for outcome in ended for error in outcome.gradient_error]
    return {
        "row": results.row.label,
        "options": _without_data_dir(results.row.options),
        "state": "complete" if complete else "diverged" if diverged else "incomplete",
        "learning_rate": rate,
        "at_edge": is_at_edge(rate, results.row.rates),
        "final": {m: _spread([each.curve[-1].value(m) for each in ended]) for m in METRICS},
        "to_target": _to_target(chosen, study.goal, averaged=complete),
        "gradient_error": [asdict(each) for each in mean_errors(errors)],
        "sweep": _sweep(results),
        "runs": [_run(each, chosen=each in chosen) for each in results.outcomes],
    }


def _without_data_dir(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "DIR" if name == "data_dir" else value for name, value in options.items()}


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float, float | None] | None:
    """Return the mean of values and their standard deviation.

    None unless all are known and finite: a run that diverged has no number to average.

    The deviation of a single value is None.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or len(known) < len(values):
        return None
    return fmean(known), stdev(known) if len(known) > 1 else None


def _spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return mean, standard deviation and all values; None if there is no mean."""
    if (found := mean_and_deviation(values)) is None:
        return None
    return {"mean": found[0], "deviation": found[1], "values": list(values)}


def _to_target(
    outcomes: Sequence[RunOutcome], target: Target | None, *, averaged: bool
) -> dict[str, Any] | None:
    """Return updates, samples and seconds to the target; their means only if all reach it.

    A row that diverged or is incomplete is not averaged.
    """
    if target is None:
        return None
    points = [first_reaching(each.curve, target) for each in outcomes]
    reached = [point for point in points if point is not None]
    all_reach = averaged and len(reached) == len(outcomes)
    return {
        "reached": len(reached),
        "runs": len(outcomes),
        "updates": _spread([p.updates for p in reached]) if all_reach else None,
        "samples": _spread([p.samples for p in reached]) if all_reach else None,
        "seconds": _spread([p.seconds for p in reached]) if all_reach else None,
    }


def _sweep(results: RowResults) -> list[dict[str, Any]]:
    """Return the mean of each learning rate over the seeds of the sweep."""
    known = {rate: each for rate, each in results.sweep_values.items() if rate is not None}
    whole = {r: fmean(v) for r, v in known.items() if len(v) == len(results.sweep[r])}
    return [
        {
            "learning_rate": rate,
            "mean": whole.get(rate),
            "diverged": sum(map(math.isinf, known[rate])),
            "missing": len(results.sweep[rate]) - len(known[rate]),
        }
        for rate in known
    ]


def _run(outcome: RunOutcome, *, chosen: bool) -> dict[str, Any]:
    """Return a run as plain values, with its curve and the command that repeats it."""
    run, result = outcome.run, outcome.result
    return {
        "learning_rate": run.rate,
        "seed": run.seed,
        "hold_out": run.config.hold_out,
        "chosen": chosen,
        "state": "missing" if result is None else result.state,
        "message": "" if result is None else result.message,
        "folder": f"{RUNS}/{run.name}",
        "command": train_command_line(run.config),
        "source": asdict(outcome.source),
        "curve": [asdict(point) for point in outcome.curve],
        "gradient_error": [asdict(each) for each in outcome.gradient_error],
    }


def train_command_line(config: RunConfig) -> str:
    """Return the command that repeats a run, with DIR for the place of its data."""
    words = ["hocket", "train"]
    shown = {"method": config.method, "stages": config.stages} | choices(config)
    for name, value in shown.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", "DIR" if name == "data_dir" else str(value)]
    return shlex.join(words)
