"""Comparison of training losses, update by update, on networks of other libraries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.jobs import job_problems, run_jobs
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings, select_fields
from benchmarks.harness.training import TrainingJob
from hocket.options import Named

# The method that others are compared with. Its result is the same for any cut: it has none.
BASE = "bp"
# A scale of 1 in place of 1e-6, which trains only after many more updates than these.
CONVNEXT = "hf_convnext:hidden_sizes=[16,32,64,128],depths=[1,1,2,1],layer_scale_init_value=1.0"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CurvesSettings:
    """Settings of the comparison of loss curves.

    Attributes:
        out: Folder of the record.
        data_dir: Folder of the data, or its file, for data sets that read files.
        network: Name in the zoo, with options.
        data: Name of the data set.
        rows: Methods, each as ``method`` or ``method:option=value,option=value``.
        stages: Numbers of stages K, balanced.
        seeds: Seeds; all rows of a seed start from equal weights and see an equal order.
        updates: Updates of each training.
        every: Updates in a point of a curve, which is the mean of their losses.
        batch: Samples per update; a method that accumulates M gradients gets batch / M a tick.
        optimizer: An optimizer of torch.optim, at a constant learning rate.
        threads: PyTorch threads of each training.
        jobs: Trainings at a time.
        nice: Niceness of each training, 0 to 19.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/curves")
    data_dir: Path | None = None
    network: str = CONVNEXT
    data: str = "cifar10"
    rows: Sequence[str] = ("fdg", "adl:accumulate=4", "ddg")
    stages: Sequence[int] = (2, 4)
    seeds: Sequence[int] = (0, 1)
    updates: int = 400
    every: int = 10
    batch: int = 32
    optimizer: str = "AdamW:lr=0.001"
    threads: int = 1
    jobs: int = 1
    nice: int = 10

    def __post_init__(self) -> None:
        problems = job_problems(self, self.training_jobs())
        if not 1 <= self.every <= self.updates or self.updates % self.every:
            problems.append(
                f"updates is {self.updates}, and cannot be divided into points of "
                f"{self.every} each; give a multiple of it"
            )
        check_settings("cannot measure curves", self, problems=problems)

    def training_jobs(self) -> list[TrainingJob]:
        """Return the trainings, seed by seed."""
        cases = [(BASE, 1), *((row, count) for count in self.stages for row in self.rows)]
        common = select_fields(self, TrainingJob) | {"epochs": 1, "evaluate": "end"}
        return [
            TrainingJob(**(common | {"row": row, "stages": count, "seed": seed}))
            for seed in self.seeds
            for row, count in cases
        ]


DEFAULTS = CurvesSettings()


def measure_curves(settings: CurvesSettings = DEFAULTS) -> None:
    """Train by back-propagation, and by every row on every number of stages.

    Every training has a process of its own, and is saved in ``out/runs`` as it ends. Called
    again, the measurement resumes.

    Raises:
        OptionError: ``out`` has trainings with other settings.
        HocketError: A training failed; the results of the others are kept.
    """
    jobs = settings.training_jobs()
    begun = Record.from_settings("curves", settings)
    record, results = run_jobs(begun, settings, jobs)
    trained = zip(jobs, results, strict=True)
    rows = [_build_row(job, result, settings.every) for job, result in trained]
    record.with_rows(rows).write(settings.out)


def _build_row(job: TrainingJob, result: Mapping[str, Any], every: int) -> dict[str, Any]:
    """Return the row of a training; one that failed has the points up to there."""
    last = result["epochs"][-1] if result["epochs"] else {}
    losses, length = result["losses"], every * job.accumulate
    points = [losses[start : start + length] for start in range(0, len(losses), length)]
    return {
        "row": Named.parse(job.row).label,
        "stages": job.stages,
        "seed": job.seed,
        "batch_per_tick": job.batch_per_tick,
        "parameters": result["parameters"],
        "train_losses": [round(fmean(point), 4) for point in points],
        "test_loss": last.get("test_loss"),
        "test_error": last.get("test_error"),
        "staleness": last.get("staleness"),
        "time_s": last.get("time_s"),
        "source": result["source"],
        "failure": result["failure"],
    }
