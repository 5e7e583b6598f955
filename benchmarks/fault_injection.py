"""Injection of random faults, and comparison of outcomes with the documented guarantees."""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cyclopts import Parameter
from rich.console import Console
from rich.progress import track

from benchmarks.faults.corruption import corrupt_checkpoints, corrupt_packets
from benchmarks.faults.draw import draw_jobs
from benchmarks.faults.fault import format_schedule
from benchmarks.faults.job import FaultyJob
from benchmarks.faults.trial import run_trial
from benchmarks.harness.record import Record, read_json, write_record_json
from benchmarks.harness.settings import check_settings
from hocket.errors import OptionError
from hocket.methods import parse_method

METHODS = ("bp", "ddg", "fr", "fdg", "adl:accumulate=2", "dsp", "dgl", "dni")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FaultInjectionSettings:
    """Settings of the fault injection.

    Attributes:
        out: Folder of the record.
        methods: Methods of the trainings.
        stages: Largest number of stages of a training, each in a process of its own.
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
        OptionError: ``out`` has trials with other settings.
    """
    torch.set_num_threads(1)
    runs, seed = settings.out / "runs", settings.seed
    record = _first_record(Record.from_settings("fault-injection", settings), runs)
    jobs = list(draw_jobs(seed, settings.count, settings.methods, settings.stages))
    rows = [_run_job(job, runs / f"{number:04}") for number, job in enumerate(_tracked(jobs))]
    with TemporaryDirectory() as folder:
        rows += corrupt_checkpoints(Path(folder), settings.flips, settings.truncations, seed)
    rows += corrupt_packets(settings.packets, seed)
    record.with_rows(rows).write(settings.out)


def _first_record(record: Record, folder: Path) -> Record:
    """Return the record of the first call with this folder.

    Raises:
        OptionError: That call had other settings, or another version of the code.
    """
    path = folder / "begun.json"
    if not path.is_file():
        write_record_json(path, vars(record))
        return record
    first = Record(**read_json(path))
    if (first.settings, first.source) != (record.settings, record.source):
        raise OptionError(
            f"{folder} has trials with other settings or other code; choose another folder, or "
            "delete this one"
        )
    return first


def _tracked(jobs: Sequence[FaultyJob]) -> Iterable[FaultyJob]:
    """Yield the jobs, with a progress bar on a copy of stderr, which trials redirect."""
    with os.fdopen(os.dup(2), "w") as stream:
        yield from track(jobs, "faults", console=Console(file=stream))


def _run_job(job: FaultyJob, folder: Path) -> dict[str, Any]:
    """Return the row of a job, which is run unless its result is there."""
    path = folder.with_name(f"{folder.name}.json")
    if path.is_file():
        known: dict[str, Any] = read_json(path)
        return known
    shutil.rmtree(folder, ignore_errors=True)  # of a call that was interrupted
    folder.mkdir(parents=True)
    outcome = run_trial(job, folder)
    row = {
        "row": job.faults[0].kind,
        "faults": format_schedule(job.faults),
        "method": job.method,
        "stages": job.stages,
        "codes": list(outcome.exit_codes),
        "broken": outcome.violations,
        "named": not outcome.unnamed_faults,
        "detected_s": outcome.detected_s,
        "again_s": outcome.restarted_s,
        "lost": outcome.ticks_repeated,
    }
    if not outcome.violations:
        shutil.rmtree(folder)
    write_record_json(path, row)
    return row
