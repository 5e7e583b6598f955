"""Injection of random faults, and comparison of outcomes with the documented guarantees."""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cyclopts import Parameter
from rich.console import Console
from rich.progress import track

from benchmarks.faults.corruption import corrupt_checkpoints, corrupt_packets
from benchmarks.faults.draw import draw_jobs
from benchmarks.faults.job import FaultyJob
from benchmarks.faults.trial import run_trial
from benchmarks.harness.kept_results import KeptResults
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings
from hocket.methods import parse_method

METHODS = ("bp", "ddg", "fr", "fdg", "adl:accumulate=2", "dsp", "dgl", "dni")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FaultInjectionSettings:
    """Settings of the fault injection.

    Attributes:
        out: Folder of the record.
        methods: Methods of the trainings.
        stages: Largest number of stages of a training, one process for each.
        count: Number of trainings; the kinds of faults take turns, everything else is random.
        flips: Number of checkpoints with a flipped bit.
        truncations: Number of checkpoints with a truncated file.
        packets: Number of packets with a flipped bit.
        seed: Seed.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/fault-injection")
    methods: Sequence[str] = METHODS
    stages: int = 4
    count: int = 120
    flips: int = 300
    truncations: int = 50
    packets: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for method in self.methods:
            parse_method(method)
        check_settings(
            "cannot inject faults",
            self,
            # A single stage has no neighbour, which many faults need.
            at_least={2: ("stages",), 1: ("count", "flips", "truncations", "packets")},
        )


DEFAULTS = FaultInjectionSettings()


def measure_fault_injection(settings: FaultInjectionSettings = DEFAULTS) -> None:
    """Inject faults into small trainings, and corrupt checkpoints and packets.

    Every trial is saved in ``out/runs`` as it ends. Called again, the measurement resumes.

    Raises:
        OptionError: ``out`` has trials of other settings or other code.
    """
    torch.set_num_threads(1)
    record, seed = Record.from_settings("fault-injection", settings), settings.seed
    results = KeptResults(settings.out / "runs")
    results.require_same(record.settings | {"source": record.source})
    jobs = draw_jobs(seed, settings.count, settings.methods, settings.stages)
    rows = []
    for number, job in enumerate(_tracked(list(jobs))):
        run = partial(_run_job, job, results.folder / f"{number:04}")
        rows.append(results.find(f"{number:04}.json", {}, run))
    with TemporaryDirectory() as folder:
        rows += corrupt_checkpoints(Path(folder), settings.flips, settings.truncations, seed)
    rows += corrupt_packets(settings.packets, seed)
    record.with_rows(rows).write(settings.out)


def _tracked(jobs: Sequence[FaultyJob]) -> Iterable[FaultyJob]:
    """Yield the jobs, with a progress bar on a copy of stderr, which trials redirect."""
    with os.fdopen(os.dup(2), "w") as stream:
        yield from track(jobs, "faults", console=Console(file=stream))


def _run_job(job: FaultyJob, folder: Path) -> dict[str, Any]:
    """Run a job; return its row. The files of a job that broke a promise stay in the folder."""
    shutil.rmtree(folder, ignore_errors=True)  # of a call that was interrupted
    folder.mkdir(parents=True)
    outcome = run_trial(job, folder)
    if not outcome.violations:
        shutil.rmtree(folder)
    return {
        "row": job.faults[0].kind,
        "faults": "; ".join(map(str, job.faults)),
        "method": job.method,
        "stages": job.stages,
        "codes": list(outcome.exit_codes),
        "broken": outcome.violations,
        "named": not outcome.unnamed_faults,
        "detected_s": outcome.detected_s,
        "again_s": outcome.restarted_s,
        "lost": outcome.ticks_repeated,
    }
