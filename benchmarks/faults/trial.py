"""A job under injected faults, and comparison of the outcome with the documented guarantee."""

import json
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.faults.expectations import CONTINUES, ENDS, EXPECTATIONS, Expectation
from benchmarks.faults.fault import Fault
from benchmarks.faults.job import FaultyJob, train_with_faults
from benchmarks.faults.launching import captured_output, run_launch, stopped_at_start
from benchmarks.faults.notes import pending_faults, read_notes
from benchmarks.faults.processes import all_processes
from hocket.distributed.folder.restart import RestartBudget, retry_after_loss


@dataclass(frozen=True)
class TrialOutcome:
    """Outcome of a job under faults.

    Attributes:
        job: The job; its faults are in the order in which they happen.
        exit_codes: Exit codes of its launches, in order.
        outputs: Output of each launch.
        starts: Number of times that a user would have had to start or resume it.
        faults_happened: Number of its faults that have happened.
        same_bits: True if its final weights equal the weights of the same job without faults.
        leftovers: Processes that still run, and unfinished checkpoints.
        detected_s: Seconds from the first fault to the end of the launch that it ended.
        restarted_s: Seconds from there to the first action of the next launch.
        ticks_repeated: Ticks that the stage of the first fault had to repeat.
    """

    job: FaultyJob
    exit_codes: tuple[int, ...]
    outputs: tuple[str, ...]
    starts: int
    faults_happened: int
    same_bits: bool
    leftovers: tuple[str, ...]
    detected_s: float | None
    restarted_s: float | None
    ticks_repeated: int | None

    @property
    def unnamed_faults(self) -> list[Fault]:
        """Faults whose stage was not named though that is guaranteed."""
        endings = iter(self.outputs)
        outputs = {
            fault: "".join(self.outputs)
            if _expectation(fault).ending == CONTINUES
            else next(endings, "")
            for fault in self.job.faults
        }
        return [
            fault
            for fault, output in outputs.items()
            if not re.search(
                _expectation(fault).message.replace("{stage}", str(fault.stage)), output
            )
        ]

    @property
    def violations(self) -> list[str]:
        """Guarantees that were not kept, as sentences."""
        expected = list(map(_expectation, self.job.faults))
        ends = [one.exit_codes for one in expected if one.ending != CONTINUES]
        starts = 1 + sum(one.ending == ENDS for one in expected)
        problems = [f"{fault} was not named" for fault in self.unnamed_faults]
        if self.faults_happened != len(expected):
            problems.append(f"{self.faults_happened} of its {len(expected)} faults happened")
        pairs = zip(self.exit_codes, [*ends, (0,)], strict=False)
        if len(self.exit_codes) != len(ends) + 1 or any(
            code not in allowed for code, allowed in pairs
        ):
            problems.append(f"its launches ended with {self.exit_codes}")
        if self.starts != starts:
            problems.append(
                f"it was started or resumed {self.starts} times instead of {starts}"
            )
        if not self.same_bits:
            problems.append("its final weights differ from those without faults")
        return problems + [f"{name} was left" for name in self.leftovers]


def _expectation(fault: Fault) -> Expectation:
    return EXPECTATIONS[fault.kind]


def run_trial(job: FaultyJob, folder: Path) -> TrialOutcome:
    """Run a job in an empty folder; restart it as `hocket train` does, and resume it."""
    codes: list[int] = []
    outputs: list[str] = []
    ends_s: list[float] = []

    def start(again: bool) -> int:
        pending = pending_faults(folder, job.faults)
        with (
            captured_output(folder / f"output-{len(codes)}.txt") as file,
            stopped_at_start(folder, job.faults, pending),
        ):
            codes.append(run_launch(job, folder, len(codes), pending))
        ends_s.append(time.monotonic())
        outputs.append(file.read_text())
        return codes[-1]

    starts = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is one for each restart
        while starts <= len(job.faults) and (not codes or codes[-1]):
            starts += 1
            retry_after_loss(start, RestartBudget(len(job.faults)))
    notes = read_notes(folder)
    first = min(notes, key=lambda note: note["time"], default=None)
    stage = job.faults[0].stage if job.faults else 0
    before, after = _read_span(folder, 0, stage), _read_span(folder, 1, stage)
    # A process that was killed wrote no span; its last tick is the tick of the fault.
    last = before["last"] if before else first["tick"] if first else 0
    digests = {file.read_text() for file in folder.glob("digest-*")}
    return TrialOutcome(
        job=job,
        exit_codes=tuple(codes),
        outputs=tuple(outputs),
        starts=starts,
        faults_happened=len(notes),
        same_bits=digests == {expected_digest(job.method, job.stages)},
        leftovers=tuple(_find_leftovers(folder)),
        detected_s=ends_s[0] - first["time"] if first and len(codes) > 1 else None,
        restarted_s=after["time"] - ends_s[0] if after else None,
        ticks_repeated=max(0, last - after["first"]) if after else None,
    )


@cache
def expected_digest(method: str, stages: int) -> str:
    """Return the digest of the final weights of the job without faults, in one process."""
    return train_with_faults(FaultyJob(method, stages), None)


def _read_span(folder: Path, attempt: int, rank: int) -> dict[str, Any] | None:
    """Read the first and last tick of a process; None if it was killed before writing them."""
    file = folder / f"span-{attempt}-{rank}.json"
    return json.loads(file.read_text()) if file.exists() else None


def _find_leftovers(folder: Path) -> Iterator[str]:
    """Yield processes of the job that still run, and unfinished checkpoints."""
    leaders = {file.name.removeprefix("pid-") for file in folder.glob("pid-*")}
    for pid, state, _, session in all_processes():
        if session in leaders and state != "Z":
            yield f"process {pid}"
    yield from (path.name for path in (folder / "checkpoints").glob(".*"))
