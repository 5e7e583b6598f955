"""Time to the target of a study: its updates, times seconds of an update in processes."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.kept_results import KeptResults
from benchmarks.harness.link_times import NO_LIMIT, TimedRow, time_over_link
from benchmarks.harness.real_run import beside_product, run_training
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings
from benchmarks.harness.studied_rows import StudiedRow, read_study, with_baselines
from benchmarks.peers.rows import BASE, trained_row
from hocket.options import Named
from hocket_lab.studies.record import SweepRecord
from hocket_lab.studies.rows import choices


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StudyTimesSettings:
    """Settings of the measurement of times to the target of a study.

    Attributes:
        out: Folder of the record, and of what was measured already.
        data_dir: Folder of the data of the study, or its file.
        study: Folder with the record of the study.
        baselines: Baselines that wait for the gradient of the whole batch, with the updates of
            back-propagation; and ``independent``, the limit of the machine, which has a loss
            for each process and so no time to the target.
        repetitions: Rounds in which every row has one turn.
        seconds: Length of a turn.
        confirm: Run each row that reached the target once to its end.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/study-times")
    data_dir: Path | None = None
    study: str = "records/gpt-characters-two-stages"
    baselines: Sequence[str] = ("independent", "bp-all", "ddp")
    repetitions: int = 5
    seconds: float = 4
    confirm: bool = True

    def __post_init__(self) -> None:
        problems = [
            f"{name!r} does not wait for the gradient of the whole batch, and so has other "
            f"updates than {BASE}; leave it out"
            for name in self.baselines
            if trained_row(name) != BASE
        ]
        check_settings(
            "cannot measure times of a study",
            self,
            at_least={1: ("repetitions",)},
            problems=problems,
        )


DEFAULTS = StudyTimesSettings()


def measure_study_times(settings: StudyTimesSettings = DEFAULTS) -> None:
    """Time the updates of all rows of a study in processes, and write the record.

    What was measured is kept in ``out``; called again, the measurement goes on with the rest.

    Raises:
        RunFolderError: There is no record of the study.
        OptionError: The study is not finished, or cannot be run in processes.
        HocketError: A process failed.
    """
    studied = read_study(Path(settings.study), settings.data_dir)
    processes = max(row.config.stages for row in studied)
    rows = with_baselines(studied, settings.baselines)
    timed = [row.timed(processes) for row in rows]
    values = SweepRecord.read(settings.study).values["settings"]
    record = Record.from_settings(
        "study-times",
        settings,
        target=values["target"],
        seeds=values["seeds"],
        parameters=timed[0].work.parameter_count(),
        **{name: getattr(rows[0].config, name) for name in ("network", "data", "threads")},
    )
    results = KeptResults(settings.out)
    times = _times(settings, results, rows, timed)
    found = []
    for row, one in zip(rows, timed, strict=True):
        update_s = times[row.name]["update_s"]
        confirm = settings.confirm and row.own_updates is not None
        confirmed = _confirm(results, row, one, update_s) if confirm else None
        found.append(_row(row, one, times[row.name]) | {"confirmed": confirmed})
    record.with_rows(found).write(settings.out)


def _times(
    settings: StudyTimesSettings,
    results: KeptResults,
    rows: Sequence[StudiedRow],
    timed: Sequence[TimedRow],
) -> dict[str, Any]:
    """Return the times of all rows, measured once.

    Args:
        settings: The settings.
        results: Results of the folder.
        rows: The rows.
        timed: Their trainings.
    """
    asked = {
        "repetitions": settings.repetitions,
        "seconds": settings.seconds,
        "rows": {row.name: _choices(row) for row in rows},
    }
    times: dict[str, Any] = results.find(
        "times.json",
        asked,
        lambda: time_over_link(
            NO_LIMIT, timed, repetitions=settings.repetitions, seconds=settings.seconds
        ),
    )
    return times


def _confirm(
    results: KeptResults, row: StudiedRow, one: TimedRow, update_s: float
) -> dict[str, Any]:
    """Return what a real run of the first seed took, compared with the product.

    Args:
        results: Results of the folder.
        row: The row, which has reached the target.
        one: Its training.
        update_s: Seconds of an update.
    """
    updates = row.own_updates
    assert updates is not None, "the row has reached the target"
    ran = results.find(
        f"confirmed-{Named(row.name).slug}.json",
        _choices(row) | {"updates": updates},
        lambda: run_training(one, NO_LIMIT, updates),
    )
    print(f"{row.name}: {ran['seconds']:.1f} s to the end", file=sys.stderr, flush=True)
    return beside_product(ran, updates * update_s) | {"updates": updates}


def _choices(row: StudiedRow) -> dict[str, Any]:
    """Return what decides the results of a row, but for the place of its data."""
    chosen = choices(row.config) | {"baseline": row.baseline}
    chosen.pop("data_dir", None)
    return chosen


def _row(row: StudiedRow, one: TimedRow, times: Mapping[str, float]) -> dict[str, Any]:
    """Return a row of the record."""
    mean = None if row.to_target is None else row.to_target["mean"]
    return {
        "row": row.name,
        "base": row.is_base,
        "processes": one.baseline.processes,
        "threads": one.baseline.threads,
        "learning_rate": row.learning_rate,
        "at_edge": row.at_edge,
        "updates": row.to_target,
        "curve": list(row.curve),
        **times,
        "seconds": None if mean is None else mean * times["update_s"],
    }
