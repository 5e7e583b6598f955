"""Comparison of training loss and test error per epoch, over several seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.jobs import format_sgd, job_problems, run_jobs
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings, select_fields
from benchmarks.harness.training import TrainingJob
from hocket.options import Named

ROWS = ("bp", "ddg", "fr", "fdg", "fdg:shrink=0.5", "adl:accumulate=4", "dgl")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AccuracySettings:
    """Settings of the comparison of test errors.

    Attributes:
        out: Folder of the record.
        data_dir: Folder of the data, for data sets that read files.
        rows: Methods, each as ``method`` or ``method:option=value,option=value``.
        seeds: Seeds; all rows of a seed start from equal weights and see an equal order.
        network: Name in the zoo.
        data: Name of the data set.
        subset: Number of images to train on, for data sets that can be limited.
        stages: Number of stages K, cut as in the paper that used the network, else balanced.
        epochs: Epochs of each training.
        batch: Samples per update; a method that accumulates M gradients gets batch / M a tick.
        rate: Learning rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        milestones: Epochs after which the learning rate falls to a tenth.
        channels_last: Use the channels-last memory format.
        threads: PyTorch threads of each training.
        jobs: Trainings at a time.
        nice: Niceness of each training, 0 to 19.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/accuracy")
    data_dir: Path | None = None
    rows: Sequence[str] = ROWS
    seeds: Sequence[int] = (0, 1)
    network: str = "resnet8"
    data: str = "cifar10"
    subset: int | None = None
    stages: int = 2
    epochs: int = 3
    batch: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    milestones: Sequence[int] = ()
    channels_last: bool = True
    threads: int = 1
    jobs: int = 1
    nice: int = 10

    def __post_init__(self) -> None:
        check_settings(
            "cannot measure accuracy",
            self,
            not_empty=("rows", "seeds"),
            problems=job_problems(self, self.training_jobs()),
        )

    def training_jobs(self) -> list[TrainingJob]:
        """Return the trainings, seed by seed."""
        common = select_fields(self, TrainingJob) | {
            "optimizer": format_sgd(self),
            "milestones": tuple(self.milestones),
        }
        return [
            TrainingJob(row=row, seed=seed, **common)
            for seed in self.seeds
            for row in self.rows
        ]


DEFAULTS = AccuracySettings()


def measure_accuracy(settings: AccuracySettings = DEFAULTS) -> None:
    """Train every row with every seed, each in a process of its own, and write the record.

    Every training is saved in ``out/runs`` as it ends. Called again, the measurement resumes;
    finished trainings are not repeated.

    Raises:
        OptionError: ``out`` has trainings with other settings.
        HocketError: A training failed; the results of the others are kept.
    """
    jobs = settings.training_jobs()
    begun = Record.from_settings("accuracy", settings)
    record, results = run_jobs(begun, settings, jobs)
    trained = zip(jobs, results, strict=True)
    rows = [row for job, result in trained for row in _build_rows(job, result)]
    record.with_rows(rows).write(settings.out)


def _build_rows(job: TrainingJob, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each epoch of a training, and one for its failure, if it failed."""
    common = {
        "row": Named.parse(job.row).label,
        "seed": job.seed,
        "batch_per_tick": job.batch_per_tick,
        "source": result["source"],
    }
    rows = [common | epoch | {"failure": None} for epoch in result["epochs"]]
    if result["failure"]:
        epoch = len(result["epochs"]) + 1
        rows.append(common | {"epoch": epoch, "failure": result["failure"]})
    return rows
