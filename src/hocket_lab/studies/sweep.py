"""Running of a study: what is missing, several runs at a time, and the record at the end."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.distributed.launching.launch import usable_cores
from hocket.errors import OptionError, RunFolderError, warn
from hocket.runs.run_dir import lock_run_dir
from hocket.training.fit.interrupt import Interrupt, stop_signals
from hocket_lab.studies.kept_runs import KeptRuns
from hocket_lab.studies.pictures import chosen_curves, draw_curves
from hocket_lab.studies.pool import POLL_S, Pool
from hocket_lab.studies.progress import SweepProgress
from hocket_lab.studies.record import (
    FILE,
    PICTURE,
    RUNS,
    SweepRecord,
    build_record,
    cannot_write_study,
)
from hocket_lab.studies.results import RowResults, RunOutcome, read_outcome
from hocket_lab.studies.rows import Run
from hocket_lab.studies.run_folder import check_is_run
from hocket_lab.studies.study import Study


def sweep(
    study: Study | Path | str, folder: Path | str | None = None, *, progress: bool = True
) -> SweepRecord:
    """Run what is missing of a study, and write its record.

    Runs that have ended, also by divergence, are kept; those that were stopped continue from
    their last checkpoints, and those that failed are tried again. The first Ctrl-C stops all
    runs with a checkpoint, and the record says what is missing.

    Args:
        study: The study, or its file.
        folder: Folder of the runs and of the record; by default ``sweeps/NAME``.
        progress: Show runs as they end, and on a terminal how far the others are.

    Raises:
        OptionError: The file is no possible study.
        RunFolderError: Another process works in the folder, or it cannot be written.
    """
    study = study if isinstance(study, Study) else Study.read(study)
    folder = Path("sweeps", study.name) if folder is None else Path(folder)
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(cannot_write_study(folder, error)) from error
    with lock_run_dir(folder, "folder of a study"):
        runs = _Runs(study, folder)
        stopped_by = runs.run(shown=progress)
        record = build_record(study, folder, runs.rows, runs.kept(), runs.orphans(), stopped_by)
        _draw(record)
        record.write()
    return record


def _draw(record: SweepRecord) -> None:
    """Draw the curves of a record, if there are any, and if matplotlib is installed."""
    file = record.folder / PICTURE
    file.unlink(missing_ok=True)
    if any(chosen_curves(row) for row in record.rows):
        try:
            draw_curves(record.values, file)
        except (OptionError, OSError, ValueError) as error:  # the record matters more
            file.unlink(missing_ok=True)  # it may have filled the disk
            warn(f"there is no picture of the study: {error}")


def runs_at_a_time(study: Study) -> int:
    """Return the number of runs at a time: the study's, or what the cores allow."""
    if study.jobs:
        return study.jobs
    cores = usable_cores()
    # Without a number of threads PyTorch takes one for each core.
    threads = max((run.config.threads or cores for run in study.runs()), default=1)
    return max(1, cores // threads)


class _Runs:
    """The runs of a study, those that have ended and those that are still to run."""

    def __init__(self, study: Study, folder: Path) -> None:
        self._study = study
        self._runs = folder / RUNS
        self._outcomes: dict[str, RunOutcome] = {}
        self.rows = [RowResults(study, row, self._outcomes) for row in study.rows]
        self._tried: set[str] = set()
        self._kept = KeptRuns(folder / FILE, study.metric)
        for run in study.runs():
            check_is_run(self._runs / run.name, run)
            outcome = read_outcome(self._runs, run, study.metric)
            if outcome.last is None:
                outcome = self._kept.find(run) or outcome
            self._outcomes[run.name] = outcome

    def kept(self) -> list[Mapping[str, Any]]:
        """Return the runs of the last record that no row needs now, as they are there."""
        ended = {each.run.name for each in self._needed() if each.last is not None}
        return self._kept.besides(ended)

    def orphans(self) -> list[str]:
        """Return the names of run folders that belong to no run of the study, as it is now."""
        return sorted(p.name for p in self._runs.iterdir() if p.name not in self._outcomes)

    def run(self, *, shown: bool) -> int:
        """Run what is missing; return the number of the signal that stopped it, or 0."""
        at_once = runs_at_a_time(self._study)
        done = sum(each.last is not None for each in self._needed())
        with (
            SweepProgress(self._total(), done, self._study.metric, shown=shown) as bar,
            Interrupt(stop_signals()) as interrupt,
            Pool(self._runs, shares=at_once > 1) as pool,
        ):
            waiting = self._missing()
            while (waiting or pool.running) and not interrupt.asked:
                while waiting and len(pool.running) < at_once:
                    run = waiting.pop(0)
                    self._tried.add(run.name)
                    pool.start(run)
                if self._collect(pool, bar):
                    waiting = self._missing()
                else:
                    time.sleep(POLL_S)
                bar.update(pool.running)
            pool.stop()
            self._collect(pool, bar)
        return interrupt.asked

    def _collect(self, pool: Pool, bar: SweepProgress) -> bool:
        """Read the outcomes of the runs that have ended; return True if there are any."""
        ended = list(pool.ended())
        for run, result in ended:
            outcome = read_outcome(self._runs, run, self._study.metric)
            if outcome.result is None and result is not None:  # it could not be written
                outcome = replace(outcome, result=result)
            self._outcomes[run.name] = outcome
            bar.end(outcome if result is not None else None, run, self._total())
            if result is not None and result.state == "finished" and result.message:
                warn(f"{run.title}: {result.message}")
        return bool(ended)

    def _needed(self) -> Sequence[RunOutcome]:
        """Return the outcomes of all runs that the study needs as far as is known."""
        return [each for row in self.rows for each in row.outcomes]

    def _missing(self) -> list[Run]:
        """Return the runs to start: those without an end, and once those that failed."""
        return [
            each.run
            for each in self._needed()
            if each.run.name not in self._tried
            and (each.result is None or each.result.state == "failed")
        ]

    def _total(self) -> int:
        """Return the number of runs of the study; a best rate that is not known will be."""
        later = len(self._study.later_seeds)
        return sum(
            len(row.outcomes) + (later if row.best is None and not row.is_over else 0)
            for row in self.rows
        )
