"""Run in a report: everything that its folder, or the record of its study, says about it."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hocket.runs.metrics_log import log_files
from hocket.runs.read_folder import (
    RunContents,
    metric_rows,
    read_run_folder,
    reading_run,
    require_stages,
)
from hocket_lab.studies.curve import Point, read_curve

Series = Sequence[tuple[float, float]]
"""Points (x, y) of a line."""


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


@dataclass(frozen=True, kw_only=True)
class ReportedRun(RunContents):
    """Run in a report.

    Attributes:
        name: Name in the report.
        curve: Its metrics at each evaluation and epoch.
        metrics: Its metrics of single batches.
    """

    name: str
    curve: Sequence[Point]
    metrics: BatchMetrics = BatchMetrics()

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
    contents = read_run_folder(folder)
    with reading_run(folder):
        files = [file for file in log_files(folder) if file.suffix == ".jsonl"]
        return ReportedRun(
            **vars(contents),
            name=folder.name,
            curve=read_curve(folder, contents.config, under_way=True),
            metrics=_read_batch_metrics(sorted(files), contents.config.stages),
        )


def _read_batch_metrics(files: Sequence[Path], stages: int) -> BatchMetrics:
    """Read the metrics of single batches from the files of all processes.

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
            require_stages(stage + 1)
            if not math.isfinite(batch):
                raise ValueError(f"{file.name} has a row of the batch {batch}")
            for name, series in by_stage.items():
                if row.get(name) is not None:
                    series[stage].append((batch, float(row[name])))
            is_last = row.get("last", stage == stages - 1)  # older versions do not tell
            if row.get("loss") is not None and is_last:
                loss.append((batch, float(row["loss"])))
    return BatchMetrics(loss, **{k: dict(sorted(v.items())) for k, v in by_stage.items()})
