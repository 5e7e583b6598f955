"""Trainings of a measurement, each in a process of its own; results are kept."""

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness.process import run_module
from benchmarks.harness.record import Record, read_json, write_record_json
from benchmarks.harness.settings import Settings
from benchmarks.harness.training import TrainingJob
from hocket.errors import HocketError, OptionError, format_problems


class JobSettings(Settings, Protocol):
    """Settings of a measurement that consists of trainings."""

    @property
    def data_dir(self) -> Path | None:
        """Folder of the data."""

    @property
    def jobs(self) -> int:
        """Number of trainings at a time."""

    @property
    def nice(self) -> int:
        """Niceness of each training, 0 to 19."""


class SGDSettings(Protocol):
    """Settings of a measurement that trains by SGD."""

    @property
    def rate(self) -> float:
        """Learning rate."""

    @property
    def momentum(self) -> float:
        """Momentum."""

    @property
    def weight_decay(self) -> float:
        """Weight decay."""


def format_sgd(settings: SGDSettings) -> str:
    """Return the optimizer of these settings, as `hocket train` takes it.

    >>> from types import SimpleNamespace
    >>> format_sgd(SimpleNamespace(rate=0.1, momentum=0.9, weight_decay=5e-4))
    'SGD:lr=0.1,momentum=0.9,weight_decay=0.0005'
    """
    return (
        f"SGD:lr={settings.rate},momentum={settings.momentum},"
        f"weight_decay={settings.weight_decay}"
    )


def batch_problems(jobs: Sequence[TrainingJob]) -> list[str]:
    """Return a line for each method whose accumulation does not divide the batch."""
    return [
        f"row {row!r} accumulates {accumulate} gradients; give a batch that is a multiple of "
        f"it instead of {jobs[0].batch}"
        for row, accumulate in {job.row: job.accumulate for job in jobs}.items()
        if jobs[0].batch % accumulate
    ]


def job_problems(settings: JobSettings, jobs: Sequence[TrainingJob]) -> list[str]:
    """Return a line for each reason not to run these jobs."""
    problems = batch_problems(jobs) if jobs else ["there is nothing to train"]
    if settings.jobs < 1:
        problems.append(f"jobs is {settings.jobs}; give 1 or more")
    if len({job.file for job in jobs}) < len(jobs):
        problems.append("something is listed twice; list each once")
    return problems


def run_jobs(
    record: Record, settings: JobSettings, jobs: Sequence[TrainingJob]
) -> tuple[Record, list[dict[str, Any]]]:
    """Run the jobs that have no result in ``out/runs`` yet, and save each result as it ends.

    Args:
        record: The record of this call.
        settings: Its settings.
        jobs: The jobs, without `job_problems`.

    Returns:
        The record of the first call with this folder, and a result for each job.

    Raises:
        OptionError: The folder has results of other settings.
        HocketError: A training failed; the results of the others are kept.
    """
    folder = settings.out / "runs"
    record = _first_record(record, folder)
    missing = [job for job in jobs if not _has_result(job, folder)]
    runner = JobRunner(folder, settings.data_dir, settings.nice, total=len(jobs))
    runner.run(missing, at_once=settings.jobs)
    return record, [read_json(folder / job.file) for job in jobs]


def _first_record(record: Record, folder: Path) -> Record:
    """Return the record of the first call with this folder, with the settings of this call.

    Rows name the code that they were measured with, so that a mixture would show.
    """
    path = folder / "begun.json"
    if path.is_file():
        first = Record(**read_json(path))
        return dataclasses.replace(first, command=record.command, settings=record.settings)
    write_record_json(path, dataclasses.asdict(record))
    return record


def _has_result(job: TrainingJob, folder: Path) -> bool:
    """Return True if the result of a job is in the folder.

    Raises:
        OptionError: There is a result of a job with the same name and other settings.
    """
    path = folder / job.file
    if not path.is_file():
        return False
    kept, wanted = read_json(path)["job"], json.loads(json.dumps(dataclasses.asdict(job)))
    differing = [name for name in wanted if kept.get(name) != wanted[name]]
    if differing:
        shown = ", ".join(f"{name} {kept.get(name)} != {wanted[name]}" for name in differing)
        raise OptionError(
            f"{path} was measured with other settings ({shown}); "
            "choose another folder, or delete this one"
        )
    return True


@dataclass
class JobRunner:
    """A pool of processes that runs jobs.

    Attributes:
        folder: Folder of the results.
        data_dir: Folder of the data.
        nice: Niceness of each process.
        total: Number of all jobs, with those that have results already.
    """

    folder: Path
    data_dir: Path | None
    nice: int
    total: int

    def run(self, jobs: Sequence[TrainingJob], at_once: int) -> None:
        """Run jobs, several at a time, and save each result as it ends.

        Raises:
            HocketError: A training failed.
        """
        self._finished = self.total - len(jobs)
        self._failures: list[str] = []
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self._run, jobs))
        if self._failures:
            raise HocketError(
                format_problems("these trainings failed, the others are kept", self._failures)
            )

    def _run(self, job: TrainingJob) -> None:
        start_s = time.perf_counter()
        words = [json.dumps(dataclasses.asdict(job)), str(self.data_dir or ""), str(self.nice)]
        try:
            printed = run_module("benchmarks.harness.training", *words, threads=job.threads)
        except HocketError as error:
            self._failures.append(f"{job.file}: {error}")
            outcome = "failed"
        else:
            result = json.loads(printed)
            write_record_json(self.folder / job.file, result)
            outcome = result["failure"] or _describe_last(result["epochs"])
        self._finished += 1
        time_s = time.perf_counter() - start_s
        name = job.file.removesuffix(".json")
        line = f"[{self._finished}/{self.total}] {name}: {outcome}, {time_s:.0f} s"
        print(line, file=sys.stderr, flush=True)


def _describe_last(epochs: Sequence[Mapping[str, Any]]) -> str:
    error = epochs[-1]["test_error"]
    return "no error measured" if error is None else f"test error {error:.2%}"
