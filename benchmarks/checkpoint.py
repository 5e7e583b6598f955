"""What it costs to leave checkpoints beside the same training without any."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness.pairs import Work as Step
from benchmarks.harness.pairs import time_pairs
from benchmarks.harness.record import Record
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workload import PLAIN, Workload
from hocket.checkpoint import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.errors import OptionError, listed, too_small
from hocket.methods.method import Method
from hocket.runs.build import parse_method
from hocket.training.trainer import Trainer

KEPT = "resumable"
"""The row that keeps what a checkpoint needs, and leaves none."""
ROWS = (PLAIN, KEPT, "every 50", "every 10")
SAVES = 3
"""Whole saves that are timed one by one."""


def checkpoint(
    *,
    out: Path = Path("records/checkpoint"),
    rows: Sequence[str] = ROWS,
    pairs: int = 5,
    steps: int = 50,
    batch: int = 128,
    network: str = "resnet20",
    shape: tuple[int, ...] = (3, 32, 32),
    method: str = "fdg",
    stages: int = 2,
    threads: int = 1,
    channels_last: bool = True,
) -> None:
    """Time a training that leaves checkpoints beside one that does not, and write the record.

    Args:
        out: Folder of the record.
        rows: ``plain`` for another training without checkpoints, which shows the noise,
            ``resumable`` for one that only keeps what they need, ``every 50`` for one each 50
            steps.
        pairs: Blocks of each side; the ratio is the median over pairs.
        steps: Timed steps in a block; as many as lie between checkpoints, or a multiple.
        batch: Samples in a step.
        network: Name in the zoo.
        shape: One input, without the batch.
        method: The method.
        stages: K, all in one process.
        threads: Of PyTorch.
        channels_last: Memory format.

    Raises:
        OptionError: A row or a number is out of range.
    """
    chosen = dict(locals())
    numbers = {"pairs": pairs, "steps": steps, "batch": batch, "threads": threads}
    problems = too_small(numbers)
    problems += [problem for row in rows for problem in _wrong(row)]
    if problems:
        raise OptionError(listed("cannot measure checkpoints", problems))
    work = Workload(
        network=network,
        shape=shape,
        batch=batch,
        stages=stages,
        threads=threads,
        channels_last=channels_last,
    )
    record = Record.of(checkpoint, chosen, threads)
    measured = []
    for number, row in enumerate(rows, start=1):
        found = time_checkpoint_pairs(work, parse_method(method), row, pairs=pairs, steps=steps)
        measured.append(found)
        low, high = found["ratio_min"], found["ratio_max"]
        told = f"{row}: {found['ratio']:.3f} ({low:.3f} to {high:.3f})"
        print(f"[{number}/{len(rows)}] {told}", file=sys.stderr, flush=True)
    record.with_rows(measured).write(out)


def time_checkpoint_pairs(
    work: Workload, method: Method, row: str, *, pairs: int, steps: int
) -> dict[str, Any]:
    """One row: the times of `Pairs.summary`, and what was saved how fast."""
    with torch_threads(work.threads), TemporaryDirectory() as folder:
        base = work.decoupled(work.trainer(method))
        trainer = work.trainer(method, resumable=row != PLAIN)
        other = work.decoupled(trainer)
        for _ in range(work.until_full(method)):
            base()
            other()
        every, still_s = _every(row), list[float]()
        with _saving(trainer, other, Path(folder), every, still_s) as step:
            times = time_pairs(base, step, pairs=pairs, steps=steps, batch=work.batch)
        found = _whole(trainer, other, Path(folder)) if every else {"save_s": None, "mib": None}
    still = {"still_s": median(still_s) if still_s else None, "checkpoints": len(still_s)}
    return {"row": row} | times.summary() | still | found


@contextmanager
def _saving(
    trainer: Trainer, step: Step, folder: Path, every: int, still_s: list[float]
) -> Iterator[Step]:
    """Inside, a step with a checkpoint after each ``every``; how long it took is noted."""
    if not every:
        yield step
        return
    begun: list[None] = []
    kind = Checkpoints(folder, every=every, note=lambda: begun.append(None))
    with trainer.saving(kind) as save:

        def both() -> None:
            step()
            before, start = len(begun), time.perf_counter()
            save()
            if len(begun) > before:
                still_s.append(time.perf_counter() - start)

        yield both


def _whole(trainer: Trainer, step: Step, folder: Path) -> dict[str, float]:
    """How long it takes until a checkpoint is on the disk, and how large it is there."""
    times = []
    for _ in range(SAVES):
        step()
        start = time.perf_counter()
        trainer.save(folder)
        times.append(time.perf_counter() - start)
    size = sum(file.stat().st_size for file in newest_first(folder)[0].iterdir())
    return {"save_s": median(times), "mib": size / 2**20}


def _every(row: str) -> int:
    """Steps from one checkpoint of the row to the next; 0 where it leaves none.

    >>> _every("every 50"), _every("plain")
    (50, 0)
    """
    word, _, number = row.partition(" ")
    return int(number) if word == "every" and number.isdecimal() else 0


def _wrong(row: str) -> list[str]:
    """Why a row cannot be measured."""
    known = row in (PLAIN, KEPT) or _every(row)
    return [] if known else [f"row {row!r}; use {PLAIN!r}, {KEPT!r} or 'every 50'"]
