"""Runs below the paths that a user names: run folders, folders of them, and studies."""

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, OptionError, RunFolderError
from hocket.runs.config import RunConfig, parse_config
from hocket.runs.read_folder import DAMAGED, run_folders
from hocket_lab.report.rates import ReportedStudy, read_study
from hocket_lab.report.reported_run import BatchMetrics, ReportedRun, read_run
from hocket_lab.studies.curve import Point
from hocket_lab.studies.record import FILE, SweepRecord
from hocket_lab.studies.rows import DEFAULTS, with_learning_rate
from hocket_lab.studies.selection import is_chosen


@dataclass(frozen=True)
class FoundRuns:
    """Runs to report, and reasons why others are not among them.

    Attributes:
        runs: The runs, each once, in the order in which they were named.
        left_out: One line for each path that cannot be reported.
        studies: Studies that some of the runs are of.
    """

    runs: Sequence[ReportedRun]
    left_out: Sequence[str]
    studies: Sequence[ReportedStudy] = ()


def find_runs(paths: Sequence[Path]) -> FoundRuns:
    """Read the runs below paths; what cannot be read is left out, with a reason.

    A path is a run folder, the folder of a study, or a folder of run folders.

    Raises:
        RunFolderError: There is no run that can be read.
    """
    runs: dict[Path, ReportedRun] = {}
    left_out: list[str] = []
    studies: dict[Path, ReportedStudy] = {}
    for path in paths:
        for found in _read_path(path):
            if isinstance(found, ReportedRun):
                runs.setdefault(found.folder.resolve(), found)
            elif isinstance(found, ReportedStudy):
                studies[found.folder] = found
            else:
                left_out.append(found)
    if not runs:
        reasons = "; ".join(left_out) or "none was named; give the folders of runs: runs/*"
        raise RunFolderError(f"there is no run to report: {reasons}")
    names = Counter(run.name for run in runs.values())
    unique = [
        run if names[run.name] == 1 else dataclasses.replace(run, name=str(run.folder))
        for run in runs.values()
    ]
    return FoundRuns(unique, tuple(dict.fromkeys(left_out)), tuple(studies.values()))


def _read_path(path: Path) -> Iterator[ReportedRun | ReportedStudy | str]:
    """Yield the runs and studies below a path, and a reason for each that cannot be read."""
    if not os.path.isdir(path):  # whatever the system says of it
        problem = "is a file" if os.path.exists(path) else "does not exist"
        yield f"{str(path)!r} {problem}; give the folders of runs"
        return
    try:
        if (path / FILE).is_file() and not (path / "run.json").is_file():
            yield from _read_study(path)
        elif (inner := run_folders(path)) not in ([], [path]):
            for folder in inner:
                yield from _read_path(folder)
        else:
            yield read_run(path)  # which refuses what is none
    except HocketError as error:
        yield str(error)


def _read_study(folder: Path) -> Iterator[ReportedRun | ReportedStudy | str]:
    """Yield a study, and its runs at the best learning rate of each row.

    Raises:
        RunFolderError: The record is damaged.
    """
    record = SweepRecord.read(folder)
    try:
        yield read_study(record)
        for row in record.rows:
            for run in row["runs"]:
                if is_chosen(row, run):
                    yield from _read_study_run(folder, row, run)
            if row["learning_rate"] is None and row["sweep"]:
                over = all(tried.get("diverged") for tried in row["sweep"])
                missing = (
                    "learning rate without divergence" if over else "best learning rate yet"
                )
                yield f"row {row['row']!r} of {str(folder)!r} has no {missing}"
    except DAMAGED as error:
        raise RunFolderError(
            f"the record {str(folder / FILE)!r} is none of `hocket sweep` "
            f"({type(error).__name__}: {error}); give the folder of a study"
        ) from error


def _read_study_run(
    folder: Path, row: dict[str, Any], run: dict[str, Any]
) -> Iterator[ReportedRun | ReportedStudy | str]:
    """Yield a run from its folder or, if that is not here, from the record."""
    # Prefer the folder.
    run_dir = folder / run["folder"]
    if (run_dir / "run.json").is_file():
        yield from _read_path(run_dir)
        return
    if not run["curve"]:
        reason = run["message"] or "it has not been evaluated yet; call `hocket sweep` again"
        yield f"cannot show the run {str(run_dir)!r}: {reason}".replace("\n", " ")
        return
    # Build the run from its record.
    options = {**DEFAULTS, **row["options"], "data_dir": _data_dir(folder, row)}
    try:
        if run["learning_rate"] is not None:
            options = with_learning_rate(options, run["learning_rate"])
        config = parse_config(options | {"seed": run["seed"]}, str(folder / FILE))
    except OptionError as error:  # of a version with other options
        reason = str(error).replace("\n", " ")
        name = f"the run {run_dir.name!r} of {str(folder)!r}"
        yield f"{name} is not one of this version: {reason}"
        return
    yield ReportedRun(
        name=run_dir.name,
        folder=run_dir,
        config=config,
        state=run["state"],
        message=run["message"],
        curve=[Point(**point) for point in run["curve"]],
        metrics=BatchMetrics(  # the means over all batches
            cosine={each["stage"]: [(0.0, each["cosine"])] for each in run["gradient_error"]},
            ratio={each["stage"]: [(0.0, each["ratio"])] for each in run["gradient_error"]},
        ),
        processes=1,
        environment=run["source"],
    )


def _data_dir(folder: Path, row: dict[str, Any]) -> str | None:
    """Return the place of the data of a row, which only folders of its runs have."""
    for run in row["runs"]:
        file = folder / run["folder"] / "run.json"
        if file.is_file():
            found = RunConfig.read(file).data_dir
            return None if found is None else str(found)
    # Rows of several places name theirs, and must not be taken for runs of one.
    options = "|".join(RunConfig().as_dict()).replace("_", " ")
    named = re.search(rf"data dir (.+?)(?:, (?:{options}) |$)", row["row"])
    return None if named is None else named[1]
