"""A job and its faults, tried: what came of it, beside what is promised."""

import contextlib
import json
import os
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.faults.fault import Fault
from benchmarks.faults.job import FaultyJob, train_with_faults, work
from benchmarks.faults.promise import ENDS, GOES_ON, PROMISES, Expectation
from hocket.distributed.launch import launch
from hocket.distributed.restart import Restarts, retry_after_loss

GRACE_S = 2.0


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        job: Which one; its faults stand in the order in which they happen.
        codes: Exit codes of its launches, one after the other.
        told: What each of them has said.
        calls: How often somebody had to start or resume it.
        happened: How many of its faults have happened.
        same_bits: Whether its last weights are those of the job without faults.
        left: What is left: processes, and halves of checkpoints.
        detected_s: From the first fault to the end of the launch that it ended.
        again_s: From there to the first action of the next launch.
        lost: Ticks that the stage of the first fault had to do again.
    """

    job: FaultyJob
    codes: tuple[int, ...]
    told: tuple[str, ...]
    calls: int
    happened: int
    same_bits: bool
    left: tuple[str, ...]
    detected_s: float | None
    again_s: float | None
    lost: int | None

    @property
    def unnamed(self) -> list[Fault]:
        """The faults whose stage was not named where that is promised."""
        ends = iter(self.told)
        said = {
            fault: "".join(self.told) if _promise(fault).job == GOES_ON else next(ends, "")
            for fault in self.job.faults
        }
        return [
            fault
            for fault, words in said.items()
            if not re.search(_promise(fault).says.replace("{stage}", str(fault.stage)), words)
        ]

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept, in words; none, as it should be."""
        promises = list(map(_promise, self.job.faults))
        ending = [promise.codes for promise in promises if promise.job != GOES_ON]
        calls = 1 + sum(promise.job == ENDS for promise in promises)
        found = [f"{fault} was not named" for fault in self.unnamed]
        if self.happened != len(promises):
            found.append(f"{self.happened} of its {len(promises)} faults happened")
        pairs = zip(self.codes, [*ending, (0,)], strict=False)
        if len(self.codes) != len(ending) + 1 or any(own not in known for own, known in pairs):
            found.append(f"its launches ended with {self.codes}")
        if self.calls != calls:
            found.append(f"it was started or resumed {self.calls} times instead of {calls}")
        if not self.same_bits:
            found.append("its last bits are others than without faults")
        return found + [f"{what} was left" for what in self.left]


def _promise(fault: Fault) -> Expectation:
    return PROMISES[fault.kind]


def tried(job: FaultyJob, folder: Path) -> Outcome:
    """Carry a job out in an empty folder: started again as `hocket train` does, and resumed."""
    codes: list[int] = []
    told: list[str] = []
    ends: list[float] = []

    def start(again: bool) -> int:
        words = (job, folder, len(codes))
        with _heard(folder / f"told-{len(codes)}.txt") as file:
            codes.append(launch(work, *words, processes=job.stages, threads=1, grace_s=GRACE_S))
        ends.append(time.monotonic())
        told.append(file.read_text())
        return codes[-1]

    calls = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of each new start
        while calls <= len(job.faults) and (not codes or codes[-1]):
            calls += 1
            retry_after_loss(start, Restarts(len(job.faults)))
    notes = [_read(file) for file in sorted(folder.glob("fault-*.json"))]
    hit = min(notes, key=lambda note: note["time"], default=None)
    stage = job.faults[0].stage if job.faults else 0
    before, after = _span(folder, 0, stage), _span(folder, 1, stage)
    # Who was killed could not say how far it came; that was where the fault hit.
    last = before["last"] if before else hit["tick"] if hit else 0
    digests = {file.read_text() for file in folder.glob("digest-*")}
    return Outcome(
        job=job,
        codes=tuple(codes),
        told=tuple(told),
        calls=calls,
        happened=len(notes),
        same_bits=digests == {without_faults(job.method, job.stages)},
        left=tuple(_left(folder)),
        detected_s=ends[0] - hit["time"] if hit and len(codes) > 1 else None,
        again_s=after["time"] - ends[0] if after else None,
        lost=max(0, last - after["first"]) if after else None,
    )


@cache
def without_faults(method: str, stages: int) -> str:
    """The weights at the end of the job without faults, in one process."""
    return train_with_faults(FaultyJob(method, stages), None)


@contextlib.contextmanager
def _heard(file: Path) -> Iterator[Path]:
    """Inside, what this process and those it starts write to their streams goes to a file."""
    with file.open("w", buffering=1) as stream:
        kept = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
        try:
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
                yield file
        finally:
            for number, own in zip((1, 2), kept, strict=True):
                os.dup2(own, number)
                os.close(own)


def _span(folder: Path, attempt: int, rank: int) -> dict[str, Any] | None:
    """From which tick to which a process has come, if it could say so."""
    file = folder / f"span-{attempt}-{rank}.json"
    return _read(file) if file.exists() else None


def _read(file: Path) -> Any:
    return json.loads(file.read_text())


def _left(folder: Path) -> Iterator[str]:
    """Processes of the job that still run, and checkpoints that are half written."""
    leaders = {file.name.removeprefix("pid-") for file in folder.glob("pid-*")}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # What comes before it is a name in parentheses, of whatever it may be.
            state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
            if session in leaders and state != "Z":
                yield f"process {stat.parent.name}"
    yield from (place.name for place in (folder / "checkpoints").glob(".*"))
