"""Comparison of the step times of a training with and without checkpoints."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.record import Record
from benchmarks.harness.rounds import TimedStep, summarize_pairs, time_turns
from benchmarks.harness.settings import StepSettings, check_settings, select_fields
from benchmarks.harness.workload import PLAIN, Workload, torch_threads
from hocket.checkpoint import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.methods import parse_method
from hocket.training.trainer import Trainer

RESUMABLE = "resumable"
"""The row that keeps what a checkpoint needs, but writes none."""
SAVES = 3
"""Number of blocking saves that are timed."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CheckpointSettings(StepSettings):
    """Settings of the measurement of checkpoints.

    Attributes:
        out: Folder of the record.
        every: Steps between checkpoints, a row for each. There are two more rows: ``plain``,
            another training without checkpoints, shows the noise, and ``resumable`` only keeps
            what they need.
        pairs: Blocks of each side; the ratio is the median over pairs.
        steps: Timed steps in a block, preferably a multiple of those between checkpoints.
        method: The method.
        stages: Number of stages K, all in one process.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/checkpoint")
    every: Sequence[int] = (50, 10)
    pairs: int = 5
    steps: int = 50
    method: str = "fdg"
    stages: int = 2

    def __post_init__(self) -> None:
        check_settings(
            "cannot measure checkpoints",
            self,
            at_least={1: ("pairs", "steps", "batch", "threads")},
            problems=[f"every is {n}; give 1 or more" for n in self.every if n < 1],
        )


DEFAULTS = CheckpointSettings()


def measure_checkpoint(settings: CheckpointSettings = DEFAULTS) -> None:
    """Time trainings with and without checkpoints, and write the record."""
    record = Record.from_settings("checkpoint", settings)
    intervals = {PLAIN: 0, RESUMABLE: 0} | {f"every {every}": every for every in settings.every}
    measured = []
    for name, every in intervals.items():
        timed = time_checkpoint_row(settings, resumable=name != PLAIN, every=every)
        measured.append({"row": name} | timed)
        line = "{ratio:.3f} ({ratio_min:.3f} to {ratio_max:.3f})".format(**timed)
        print(f"{name}: {line}", file=sys.stderr, flush=True)
    record.with_rows(measured).write(settings.out)


def time_checkpoint_row(
    settings: CheckpointSettings, *, resumable: bool, every: int
) -> dict[str, Any]:
    """Time a training compared with one without checkpoints, and its saves.

    Args:
        settings: The settings.
        resumable: Whether the training keeps what a checkpoint needs.
        every: Steps between its checkpoints; 0 for none.

    Returns:
        The times of `summarize_pairs`; the number and duration of interruptions; time and
        size of a blocking save.
    """
    work = Workload(**select_fields(settings, Workload))
    method, steps = parse_method(settings.method), settings.steps
    with torch_threads(work.threads), TemporaryDirectory() as folder:
        base = work.trainer_step(work.build_trainer(method))
        trainer = work.build_trainer(method, resumable=resumable)
        other = work.trainer_step(trainer)
        for _ in range(work.warmup_steps(method)):
            base()
            other()
        blocked_s: list[float] = []
        with _with_checkpoints(trainer, other, Path(folder), every, blocked_s) as step:
            times = time_turns(
                {"plain": base, "other": step},
                rounds=settings.pairs,
                steps=steps,
                synchronize=_wait_for_write,
            )
        saves: dict[str, float | None] = {"save_s": None, "mib": None}
        if every:
            saves |= _time_saves(trainer, other, Path(folder))
    summary = summarize_pairs(times["plain"], times["other"], steps * work.batch)
    blocked = {"still_s": median(blocked_s) if blocked_s else None}
    return summary | blocked | {"checkpoints": len(blocked_s)} | saves


@contextmanager
def _with_checkpoints(
    trainer: Trainer, step: TimedStep, folder: Path, every: int, blocked_s: list[float]
) -> Iterator[TimedStep]:
    """Context manager that yields a step followed by a checkpoint whenever one is due.

    If ``every`` is 0, none is. ``blocked_s`` receives the seconds for which each checkpoint
    interrupted the training.
    """
    if not every:
        yield step
        return
    begun: list[None] = []
    checkpoints = Checkpoints(folder, every=every, note=lambda: begun.append(None))
    with trainer.saving(checkpoints) as save:

        def step_and_save() -> None:
            step()
            before, start_s = len(begun), time.perf_counter()
            save()
            if len(begun) > before:
                blocked_s.append(time.perf_counter() - start_s)

        yield step_and_save


def _wait_for_write() -> None:
    """Wait for a checkpoint that is being written, whose block pays for the rest of it."""
    for thread in threading.enumerate():
        if thread.name == "hocket-saver":
            thread.join()


def _time_saves(trainer: Trainer, step: TimedStep, folder: Path) -> dict[str, float]:
    """Return the median seconds of a blocking save, and the size of a checkpoint in MiB."""
    times_s = []
    for _ in range(SAVES):
        step()
        start_s = time.perf_counter()
        trainer.save(folder)
        times_s.append(time.perf_counter() - start_s)
    size = sum(file.stat().st_size for file in newest_first(folder)[0].iterdir())
    return {"save_s": median(times_s), "mib": size / 2**20}
