"""Comparison of the step times of a training with and without checkpoints."""

import sys
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
from benchmarks.harness.rounds import TimedStep, time_pairs
from benchmarks.harness.settings import StepSettings, check_settings, select_fields
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workload import PLAIN, Workload
from hocket.checkpoint import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.methods import parse_method
from hocket.methods.method import Method
from hocket.training.trainer import Trainer

RESUMABLE = "resumable"
"""The row that keeps what a checkpoint needs, but writes none."""
ROWS = (PLAIN, RESUMABLE, "every 50", "every 10")
SAVES = 3
"""Number of blocking saves that are timed."""


def _parse_interval(row: str) -> int:
    """Return the steps between checkpoints of a row; 0 if it writes none.

    >>> _parse_interval("every 50"), _parse_interval("plain")
    (50, 0)
    """
    word, _, number = row.partition(" ")
    return int(number) if word == "every" and number.isdecimal() else 0


def _row_problems(row: str) -> list[str]:
    if row in (PLAIN, RESUMABLE) or _parse_interval(row):
        return []
    return [f"row {row!r}; use {PLAIN!r}, {RESUMABLE!r} or 'every 50'"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CheckpointSettings(StepSettings):
    """Settings of the measurement of checkpoints.

    Attributes:
        out: Folder of the record.
        rows: ``plain`` for another training without checkpoints, which shows the noise,
            ``resumable`` for one that only keeps what they need, ``every 50`` for one each 50
            steps.
        pairs: Blocks of each side; the ratio is the median over pairs.
        steps: Timed steps in a block, preferably a multiple of those between checkpoints.
        method: The method.
        stages: Number of stages K, all in one process.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/checkpoint")
    rows: Sequence[str] = ROWS
    pairs: int = 5
    steps: int = 50
    method: str = "fdg"
    stages: int = 2

    def __post_init__(self) -> None:
        check_settings(
            "cannot measure checkpoints",
            self,
            at_least={1: ("pairs", "steps", "batch", "threads")},
            problems=[problem for row in self.rows for problem in _row_problems(row)],
        )


DEFAULTS = CheckpointSettings()


def measure_checkpoint(settings: CheckpointSettings = DEFAULTS) -> None:
    """Time trainings with and without checkpoints, and write the record."""
    work = Workload(**select_fields(settings, Workload))
    method = parse_method(settings.method)
    record = Record.from_settings("checkpoint", settings)
    measured = []
    for number, name in enumerate(settings.rows, start=1):
        row = time_checkpoint_row(work, method, name, settings.pairs, settings.steps)
        measured.append(row)
        low, high = row["ratio_min"], row["ratio_max"]
        line = f"[{number}/{len(settings.rows)}] {name}: {row['ratio']:.3f}"
        print(f"{line} ({low:.3f} to {high:.3f})", file=sys.stderr, flush=True)
    record.with_rows(measured).write(settings.out)


def time_checkpoint_row(
    work: Workload, method: Method, row: str, pairs: int, steps: int
) -> dict[str, Any]:
    """Time a row and its saves.

    Args:
        work: The workload.
        method: The method.
        row: The row.
        pairs: Blocks of each side.
        steps: Timed steps in a block.

    Returns:
        The times of `PairedTimes.summary`; the number and duration of interruptions; time and
        size of a blocking save.
    """
    with torch_threads(work.threads), TemporaryDirectory() as folder:
        base = work.trainer_step(work.build_trainer(method))
        trainer = work.build_trainer(method, resumable=row != PLAIN)
        other = work.trainer_step(trainer)
        for _ in range(work.warmup_steps(method)):
            base()
            other()
        every, blocked_s = _parse_interval(row), list[float]()
        with _with_checkpoints(trainer, other, Path(folder), every, blocked_s) as step:
            times = time_pairs(base, step, pairs=pairs, steps=steps, batch=work.batch)
        saves = (
            {"save_s": None, "mib": None}
            if not every
            else _time_saves(trainer, other, Path(folder))
        )
    blocked = {"still_s": median(blocked_s) if blocked_s else None}
    return {"row": row} | times.summary() | blocked | {"checkpoints": len(blocked_s)} | saves


@contextmanager
def _with_checkpoints(
    trainer: Trainer, step: TimedStep, folder: Path, every: int, blocked_s: list[float]
) -> Iterator[TimedStep]:
    """Context manager that yields a step followed by a checkpoint whenever one is due.

    Args:
        trainer: The trainer.
        step: Its step.
        folder: Folder of the checkpoints.
        every: Steps between checkpoints; 0 for none.
        blocked_s: Receives the seconds for which each checkpoint interrupted the training.
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
