"""Run in a report: everything that its folder, or the record of its study, says about it."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, RunFolderError
from hocket.files import read_json
from hocket.runs.config import RUN_RANGES, RunConfig
from hocket.runs.metrics_log import log_files
from hocket.runs.summary import SUMMARY, StageSummary, parse_stage_summary
from hocket_lab.studies.curve import Point, count_epochs, metric_rows, read_curve

Series = Sequence[tuple[float, float]]
"""Points (x, y) of a line."""
DAMAGED = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError,
    MemoryError,
)  # fmt: skip
"""Errors of plain values that have another form, depth or size than Hocket's."""


@dataclass(frozen=True)
class BatchMetrics:
    """Metrics of single batches, of those that the run has logged.

    Attributes:
        loss: Training loss at the last stage, by batch.
        staleness: Staleness of each stage, by batch.
        cosine: Cosine of the angle between late and true gradient of each stage, by batch.
        ratio: Norm of the late gradient over the norm of the true one, for each stage, by
            batch.
    """

    loss: Series = ()
    staleness: Mapping[int, Series] = field(default_factory=dict)
    cosine: Mapping[int, Series] = field(default_factory=dict)
    ratio: Mapping[int, Series] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportedRun:
    """Run in a report.

    Attributes:
        name: Name in the report.
        folder: The run folder.
        config: Its choices.
        state: ``finished``, ``interrupted``, ``failed``, ``diverged`` or ``unfinished``.
        message: The reason, unless it finished.
        curve: Its metrics at each evaluation and epoch.
        metrics: Its metrics of single batches.
        stages: Results of its stages; nothing unless it has ended.
        cuts: First layers of stages 1, 2, ...
        processes: Number of processes that it was trained in; 0 if unknown.
        averaged_loss: Test loss of its averaged weights; None without such.
        averaged_error: Test error of its averaged weights, a fraction; None without such.
        environment: Versions, commit and machine.
    """

    name: str
    folder: Path
    config: RunConfig
    state: str
    message: str
    curve: Sequence[Point]
    metrics: BatchMetrics = BatchMetrics()
    stages: Sequence[StageSummary] = ()
    cuts: Sequence[str] = ()
    processes: int = 0
    averaged_loss: float | None = None
    averaged_error: float | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> Point | None:
        """State at the last evaluation; None before the first."""
        return self.curve[-1] if self.curve else None

    @property
    def samples_per_s(self) -> float | None:
        """Training samples per second; None before the end of the first epoch."""
        last = self.last
        return last.samples / last.seconds if last is not None and last.seconds else None


def read_run(folder: Path) -> ReportedRun:
    """Read a run from its folder, whether it has ended or not.

    Raises:
        RunFolderError: It is not the folder of a run, or a file in it is damaged.
    """
    if not (folder / "run.json").is_file():
        raise RunFolderError(
            f"{str(folder)!r} is no run folder, as it has no run.json; give folders that "
            "`hocket train` or `hocket sweep` has written"
        )
    try:
        config = RunConfig.read(folder / "run.json")
        environment = _read_object(folder / "environment.json")
        summary = _read_object(folder / SUMMARY)
        curve = read_curve(folder, config, under_way=True)
        files = [file for file in log_files(folder) if file.suffix == ".jsonl"]
        state, message, stages = _end(summary, count_epochs(folder))
        averaged = summary.get("averaged") or {}
        return ReportedRun(
            name=folder.name,
            folder=folder,
            config=config,
            state=state,
            message=message,
            curve=curve,
            metrics=_read_batch_metrics(sorted(files), config.stages),
            stages=stages,
            cuts=tuple(map(str, summary.get("cuts", ()))),
            processes=int(environment.pop("processes", 0)),  # a setting, and no part of it
            averaged_loss=_number(averaged.get("loss")),
            averaged_error=_number(averaged.get("error")),
            environment=environment,
        )
    except (OSError, HocketError, *DAMAGED) as error:
        reason = f"{error}".replace("\n", " ")
        raise RunFolderError(
            f"cannot read the run in {str(folder)!r} ({reason or type(error).__name__}); leave "
            "it out, or restore its files"
        ) from error


def _number(value: Any) -> float | None:
    """Return a number that may be missing.

    Raises:
        ValueError: It is no number.
    """
    return None if value is None else float(value)


def _read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is no such file.

    Raises:
        ValueError: It holds something else.
    """
    if not file.exists():
        return {}
    values = read_json(file)
    if not isinstance(values, dict):
        raise ValueError(f"{file.name} holds no object of keys and values")
    return values


def _end(summary: Mapping[str, Any], epochs: int) -> tuple[str, str, tuple[StageSummary, ...]]:
    """Return state, reason and stages of a run from its summary, which may be an old one.

    Args:
        summary: The summary; empty if the run has not ended.
        epochs: Number of epochs in its metrics.
    """
    if not summary:
        return "unfinished", "it is under way, or was killed", ()
    _require_stages(len(summary["stages"]))
    stages = tuple(parse_stage_summary(stage) for stage in summary["stages"])
    if epochs != (wanted := len(summary["epochs"])):
        reason = "it was resumed" if epochs > wanted else "some could not be written"
        message = f"its metrics have {epochs} epochs and its summary has {wanted}: {reason}"
        return "unfinished", message, ()
    return str(summary["state"]), str(summary["message"]), stages


def _require_stages(stages: int) -> None:
    """Refuse a number of stages that no run has.

    Raises:
        ValueError: A page of as many would not end.
    """
    if stages not in RUN_RANGES["stages"]:
        raise ValueError(f"it has {stages} stages, wanted {RUN_RANGES['stages']}")


def _read_batch_metrics(files: Sequence[Path], stages: int) -> BatchMetrics:
    """Read the metrics of single batches from the files of all processes.

    Args:
        files: The files.
        stages: Number of stages, for rows of a version that does not tell the last one.

    Raises:
        ValueError: A row is of no batch or stage.
    """
    loss: list[tuple[float, float]] = []
    by_stage: dict[str, dict[int, list[tuple[float, float]]]] = {
        name: defaultdict(list) for name in ("staleness", "cosine", "ratio")
    }
    for file in files:
        for row in metric_rows(file, "backward", "comparison"):
            batch, stage = float(row["batch"]), int(row["stage"])
            _require_stages(stage + 1)
            if not math.isfinite(batch):
                raise ValueError(f"{file.name} has a row of the batch {batch}")
            for name, series in by_stage.items():
                if row.get(name) is not None:
                    series[stage].append((batch, float(row[name])))
            is_last = row.get("last", stage == stages - 1)
            if row.get("loss") is not None and is_last:
                loss.append((batch, float(row["loss"])))
    return BatchMetrics(loss, **{k: dict(sorted(v.items())) for k, v in by_stage.items()})
