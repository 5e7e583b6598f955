"""Table of runs for pandas, with a row for each run."""

from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.errors import RunFolderError, import_extra, warn
from hocket.runs.read_folder import RunContents, read_run_folder, reading_run, run_folders

if TYPE_CHECKING:
    from pandas import DataFrame


def results(*paths: Path | str) -> "DataFrame":
    """Return a pandas DataFrame with a row for each run, ended or not.

    Its columns are the state of the run, its number of epochs and its training time, the
    results of its last epoch, and all its settings under the names of their options. A folder
    that cannot be read is left out, with a warning.

    Args:
        paths: Run folders, folders of them, folders of studies, or patterns such as ``runs/*``.

    Raises:
        OptionError: pandas is not installed.
        RunFolderError: There is no run that can be read.
    """
    pandas = import_extra("pandas", "pandas", "a table of results")
    # Read each run once.
    found = (f for path in matching_paths(*paths) for f in run_folders(path) or [path])
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    for folder in {folder.resolve(): folder for folder in found}.values():
        try:
            rows.append(_row(read_run_folder(folder)))
        except RunFolderError as error:
            left_out.append(str(error))
    # Tell of those that could not be read.
    if not rows:
        reasons = "; ".join(left_out) or "none was named; give the folders of runs: 'runs/*'"
        raise RunFolderError(f"there is no run that can be read: {reasons}")
    for reason in left_out:
        warn(f"left out: {reason}")
    return pandas.DataFrame(rows)


def matching_paths(*patterns: Path | str) -> list[Path]:
    """Return the paths that match patterns; a pattern that matches nothing stays a path."""
    return [Path(path) for text in map(str, patterns) for path in sorted(glob(text)) or [text]]


def _row(run: RunContents) -> dict[str, Any]:
    """Return the row of a run."""
    with reading_run(run.folder):
        last = run.epochs[-1] if run.epochs else {}
        test = last.get("evaluation") or {}
        seconds = sum(epoch["seconds"] for epoch in run.epochs)
        samples = sum(epoch["samples"] for epoch in run.epochs)
        return {
            "run": run.folder.name,
            "state": run.state,
            "epochs_done": len(run.epochs),
            "updates_done": last.get("updates"),
            "train_loss": last.get("loss"),
            "test_loss": test.get("loss"),
            "test_error": test.get("error"),
            "averaged_loss": run.averaged_loss,
            "averaged_error": run.averaged_error,
            "measured_staleness": last.get("staleness"),
            "seconds": seconds,
            "samples_per_s": samples / seconds if seconds else None,
            "peak_mib": max((stage.peak_mib for stage in run.stages), default=None),
            "processes": run.processes,
            **run.config.as_dict(),
            "message": run.message,
            "folder": str(run.folder),
        }
