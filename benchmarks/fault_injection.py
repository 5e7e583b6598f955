"""Faults by chance, and whether what is promised of them comes: the long form of the tests."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.faults import corruption
from benchmarks.faults.draw import drawn
from benchmarks.faults.fault import format_schedule
from benchmarks.faults.job import FaultyJob
from benchmarks.faults.trial import tried
from benchmarks.harness.record import Record, read_json, write_record_json
from hocket.errors import OptionError, listed, too_small
from hocket.runs.build import parse_method

METHODS = ("bp", "ddg", "fr", "fdg", "adl:accumulate=2", "dsp", "dgl", "dni")


def faults(
    *,
    out: Path = Path("records/faults"),
    methods: Sequence[str] = METHODS,
    stages: int = 4,
    count: int = 120,
    flips: int = 300,
    truncations: int = 50,
    packets: int = 200,
    seed: int = 0,
) -> None:
    """Let faults happen to small trainings, and damage checkpoints and packets.

    Every trial is saved in ``out/runs`` as it ends. Called again, the measurement goes on where
    it was.

    Args:
        out: Folder of the record.
        methods: Methods of the trainings.
        stages: Trainings have 1 to this many stages, each a process.
        count: Trainings; the kinds of faults come in turn, all else by chance.
        flips: Checkpoints with another bit.
        truncations: Checkpoints with a file that was cut short.
        packets: Packets with another bit.
        seed: What chance begins with.

    Raises:
        OptionError: An option is out of range, or ``out`` has trials with other settings.
    """
    chosen = dict(locals())
    counts = {"stages": stages, "count": count, "flips": flips}
    counts |= {"truncations": truncations, "packets": packets}
    problems = too_small(counts)
    if stages == 1:
        problems.append("stages is 1; give 2 or more, as much needs a neighbour")
    if problems:
        raise OptionError(listed("cannot try faults", problems))
    for method in methods:
        parse_method(method)
    torch.set_num_threads(1)
    record = _certificate(Record.of(faults, chosen), out / "runs")
    jobs = list(drawn(seed, count, methods, stages))
    rows = [_trial(job, number, out / "runs") for number, job in enumerate(_shown(jobs))]
    with TemporaryDirectory() as folder:
        rows += corruption.checkpoints(Path(folder), flips, truncations, seed)
    rows += corruption.packets(packets, seed)
    record.with_rows(rows).write(out)


def _certificate(begun: Record, folder: Path) -> Record:
    """That of the first call into this folder.

    Raises:
        OptionError: It had other settings.
    """
    path = folder / "begun.json"
    if not path.is_file():
        write_record_json(path, vars(begun))
        return begun
    first = Record(**read_json(path))
    if (first.settings, first.source) != (begun.settings, begun.source):
        raise OptionError(
            f"{folder} has trials of other settings or other code; name another folder, or "
            "delete that one"
        )
    return first


def _shown(jobs: Sequence[FaultyJob]) -> Iterable[FaultyJob]:
    """The jobs, with a bar on standard error, whatever becomes of that during a trial."""
    with os.fdopen(os.dup(2), "w") as stream:
        yield from track(jobs, "faults", console=Console(file=stream))


def _trial(job: FaultyJob, number: int, folder: Path) -> dict[str, Any]:
    """What came of a job, carried out unless that is known already."""
    path = folder / f"{number:04}.json"
    if path.is_file():
        known: dict[str, Any] = read_json(path)
        return known
    place = folder / f"{number:04}"
    shutil.rmtree(place, ignore_errors=True)  # of a call that was interrupted
    place.mkdir(parents=True)
    outcome = tried(job, place)
    row = {
        "row": job.faults[0].kind,
        "faults": format_schedule(job.faults),
        "method": job.method,
        "stages": job.stages,
        "codes": list(outcome.codes),
        "broken": outcome.broken,
        "named": not outcome.unnamed,
        "detected_s": outcome.detected_s,
        "again_s": outcome.again_s,
        "lost": outcome.lost,
    }
    if not outcome.broken:
        shutil.rmtree(place)
    write_record_json(path, row)
    return row
