"""Comparison of codecs by test error and by bytes sent for each sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.jobs import format_sgd, job_problems, run_jobs
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings, select_fields
from benchmarks.harness.training import TrainingJob

# Groups of 4, 8, 16 and 32 channels: one byte in the place of 16, 32, 64 and 128.
CODECS = ("none", "bf16", "int8", "vq:width=4", "vq:width=8", "vq:width=16", "vq:width=32")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompressionSettings:
    """Settings of the comparison of codecs.

    Attributes:
        out: Folder of the record.
        data_dir: Folder of the data, for data sets that read files.
        network: Name in the zoo, with options.
        data: Name of the data set.
        subset: Number of images to train on.
        stages: Number of stages K, balanced.
        codecs: Encodings of what stages send.
        method: The method; its buffers keep packets encoded.
        seeds: Seeds.
        epochs: Epochs of each training.
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

    out: Path = Path("records/compression")
    data_dir: Path | None = None
    network: str = "dgl6:pooling=buffer,width=32"
    data: str = "cifar10"
    subset: int | None = 4000
    stages: int = 6
    codecs: Sequence[str] = CODECS
    method: str = "dgl-async:head=mlp,buffer=30"
    seeds: Sequence[int] = (0, 1)
    epochs: int = 3
    batch: int = 64
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    threads: int = 1
    jobs: int = 1
    nice: int = 10

    def __post_init__(self) -> None:
        problems = job_problems(self, self.training_jobs())
        check_settings("cannot compare codecs", self, problems=problems)

    def training_jobs(self) -> list[TrainingJob]:
        """Return the trainings, seed by seed."""
        common = select_fields(self, TrainingJob) | {
            "row": self.method,
            "optimizer": format_sgd(self),
            "evaluate": "end",
        }
        return [
            TrainingJob(codec=codec, seed=seed, **common)
            for seed in self.seeds
            for codec in self.codecs
        ]


DEFAULTS = CompressionSettings()


def measure_compression(settings: CompressionSettings = DEFAULTS) -> None:
    """Train with each codec on every edge, each time in a process of its own.

    Called again, the measurement resumes.

    Raises:
        OptionError: ``out`` has trainings with other settings.
        HocketError: A training failed; the results of the others are kept.
    """
    jobs = settings.training_jobs()
    begun = Record.from_settings("compression", settings)
    record, results = run_jobs(begun, settings, jobs)
    rows = [_build_row(job, result) for job, result in zip(jobs, results, strict=True)]
    record.with_rows(rows).write(settings.out)


def _build_row(job: TrainingJob, result: Mapping[str, Any]) -> dict[str, Any]:
    last = result["epochs"][-1] if result["epochs"] else {}
    sent = [stage["send_stats"] for stage in result["stages"][:-1]]
    received = [
        stage["receive_stats"]
        for stage in result["stages"]
        if stage["receive_stats"] is not None
    ]
    samples = sum(epoch["samples"] for epoch in result["epochs"])
    errors = [stats["error"] for stats in sent if stats["error"] is not None]
    perplexities = [stats["perplexity"] for stats in sent if stats["perplexity"] is not None]
    return {
        "codec": job.codec,
        "seed": job.seed,
        "test_error": last.get("test_error"),
        # Over all edges together.
        "sent_kib": sum(stats["arrived_bytes"] for stats in received) / samples / 1024,
        "buffer_mib": sum(stats["buffer_bytes"] for stats in received) / 2**20,
        "lost": fmean(errors) if errors else None,
        "perplexity": fmean(perplexities) if perplexities else None,
        "source": result["source"],
        "failure": result["failure"],
    }
