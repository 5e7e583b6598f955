"""Test error of free-running stages over the slow-down of one of them and buffer size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cyclopts import Parameter

from benchmarks.harness.jobs import format_sgd, job_problems, run_jobs
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings, select_fields, stage_problem
from benchmarks.harness.training import TrainingJob


class SlowdownCase(NamedTuple):
    """One training of the measurement.

    Attributes:
        factor: Slow-down of the slow stage.
        buffer: Batches in each buffer.
        seed: Seed.
    """

    factor: float
    buffer: int
    seed: int


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SlowdownSettings:
    """Settings of the measurement of a slow stage's effect on errors.

    Attributes:
        out: Folder of the record.
        data_dir: Folder of the data, for data sets that read files.
        network: Name in the zoo, with options.
        data: Name of the data set.
        subset: Number of images to train on.
        stages: Number of stages K, balanced.
        slowed: The slow stage.
        factors: Slow-downs of that stage; 3 means a third of the speed.
        buffers: Numbers of batches that each stage buffers (M).
        method: The method, without its buffer.
        seeds: Seeds.
        epochs: Epochs that each stage learns.
        batch: Samples in a batch.
        rate: Learning rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        threads: PyTorch threads of each training.
        jobs: Trainings at a time.
        nice: Niceness of each training, 0 to 19.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/slowdown")
    data_dir: Path | None = None
    network: str = "dgl6:pooling=buffer,width=16"
    data: str = "cifar10"
    subset: int | None = 4000
    stages: int = 6
    slowed: int = 3
    factors: Sequence[float] = (1, 1.25, 1.5, 2, 3)
    buffers: Sequence[int] = (1, 5, 30)
    method: str = "dgl-async:head=mlp"
    seeds: Sequence[int] = (0, 1)
    epochs: int = 4
    batch: int = 64
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    threads: int = 1
    jobs: int = 1
    nice: int = 10

    def __post_init__(self) -> None:
        problems = stage_problem("slowed", self.slowed, self.stages)
        problems += job_problems(self, self.training_jobs())
        check_settings("cannot measure a slow-down", self, problems=problems)

    def cases(self) -> list[SlowdownCase]:
        """Return the trainings' parameters, seed by seed."""
        return [
            SlowdownCase(factor, buffer, seed)
            for seed in self.seeds
            for buffer in self.buffers
            for factor in self.factors
        ]

    def training_jobs(self) -> list[TrainingJob]:
        """Return the trainings, in the order of the cases."""
        separator = "," if ":" in self.method else ":"
        common = select_fields(self, TrainingJob) | {
            "optimizer": format_sgd(self),
            "stage_timing": "random",
            "evaluate": "end",
        }
        return [
            TrainingJob(
                row=f"{self.method}{separator}buffer={case.buffer}",
                seed=case.seed,
                stage_speeds=tuple(
                    1 / case.factor if stage == self.slowed else 1.0
                    for stage in range(self.stages)
                ),
                **common,
            )
            for case in self.cases()
        ]


DEFAULTS = SlowdownSettings()


def measure_slowdown(settings: SlowdownSettings = DEFAULTS) -> None:
    """Train with one stage slower than the others, each time in a process of its own.

    The next stage to compute is drawn at random in proportion to the speeds, as in the official
    code of arXiv 1901.08164. Every stage learns for the same number of epochs. Called again,
    the measurement resumes.

    Raises:
        OptionError: ``out`` has trainings with other settings.
        HocketError: A training failed; the results of the others are kept.
    """
    begun = Record.from_settings("slowdown", settings)
    record, results = run_jobs(begun, settings, settings.training_jobs())
    rows = [
        _build_row(case, settings.slowed, result)
        for case, result in zip(settings.cases(), results, strict=True)
    ]
    record.with_rows(rows).write(settings.out)


def _build_row(case: SlowdownCase, slowed: int, result: Mapping[str, Any]) -> dict[str, Any]:
    last = result["epochs"][-1] if result["epochs"] else {}
    received = [stage["receive_stats"] for stage in result["stages"][1:]]
    slow = received[slowed - 1] if slowed > 0 else None
    after = received[slowed] if slowed < len(received) else None
    return case._asdict() | {
        "test_error": last.get("test_error"),
        "passes": len(result["epochs"]),
        # Shares of the batches that arrived at the slow stage, and that the next one drew.
        "dropped": slow["dropped"] / slow["arrived"] if slow else None,
        "reused": after["reused"] / after["drawn"] if after else None,
        "source": result["source"],
        "failure": result["failure"],
    }
