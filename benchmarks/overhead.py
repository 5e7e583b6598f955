"""What the serial engine costs beside a plain PyTorch loop that does the same work."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.memory import peak_mib, predicted
from benchmarks.harness.pairs import time_pairs
from benchmarks.harness.record import Record
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workload import PLAIN, Workload, extra_parameters
from hocket.errors import OptionError, listed, too_small
from hocket.methods.method import Method
from hocket.options import Named
from hocket.runs.build import parse_method

ROWS = (
    PLAIN,
    "bp",
    "ddg",
    "ddg:linearize=live",
    "fdg",
    "fdg:linearize=live",
    "adl:accumulate=4",
    "adl:accumulate=4,linearize=live",
    "dgl",
    "fr",
    "dsp",
    "fdg:linearize=recompute",
)
GOAL_OF_BP = 1.03
GOAL = 1.10
GOAL_OF_RECOMPUTE = 1.45


def overhead(
    *,
    out: Path = Path("records/overhead"),
    rows: Sequence[str] = ROWS,
    pairs: int = 7,
    steps: int = 8,
    batch: int = 128,
    network: str = "resnet20",
    shape: tuple[int, ...] = (3, 32, 32),
    stages: int = 2,
    threads: int = 1,
    channels_last: bool = True,
    memory: bool = True,
) -> None:
    """Time every row beside a plain loop, in turns, and write the record.

    Args:
        out: Folder of the record.
        rows: Methods, each as ``method`` or ``method:option=value,option=value``; ``plain`` is
            the plain loop beside another one, which shows the noise.
        pairs: Blocks of each side; the ratio is the median over pairs.
        steps: Timed steps in a block.
        batch: Samples in a step.
        network: Name in the zoo.
        shape: One input, without the batch.
        stages: K, cut as the paper did where there is one, else balanced.
        threads: Of PyTorch, in this process and in those that measure memory.
        channels_last: Memory format.
        memory: Whether to measure the peak of memory too, in a process for each row.

    Raises:
        OptionError: A row or a number is out of range.
        HocketError: A process that measures memory failed.
    """
    chosen = dict(locals())
    _check(rows, {"pairs": pairs, "steps": steps, "batch": batch, "threads": threads})
    work = Workload(
        network=network,
        shape=shape,
        batch=batch,
        stages=stages,
        threads=threads,
        channels_last=channels_last,
    )
    record = Record.of(overhead, chosen, threads, rate=work.rate, momentum=0.9)
    measured = []
    for number, row in enumerate(rows, start=1):
        found = timed(work, row, pairs=pairs, steps=steps) | predicted(work, row)
        found["peak_mib"] = peak_mib(work, row, steps) if memory else None
        measured.append(found)
        print(f"[{number}/{len(rows)}] {_line(found)}", file=sys.stderr, flush=True)
    record.with_rows(measured).write(out)


def timed(work: Workload, row: str, *, pairs: int, steps: int) -> dict[str, Any]:
    """One row: what it is, the times of `Pairs.summary`, and the goal for the ratio."""
    with torch_threads(work.threads):
        plain = work.plain()
        plain()
        if row == PLAIN:
            about: dict[str, Any] = {
                "row": PLAIN,
                "linearize": None,
                "goal": None,
                "extra_parameters": 0,
            }
            other = work.plain()
            other()
        else:
            method = parse_method(row)
            trainer = work.trainer(method)
            about = {
                "row": Named.parse(row).label,
                "linearize": method.linearize if method.signal.needs_gradient else None,
                "goal": goal(method, work.stages),
                "extra_parameters": extra_parameters(trainer),
            }
            other = work.decoupled(trainer)
            for _ in range(work.until_full(method)):
                other()
        times = time_pairs(plain, other, pairs=pairs, steps=steps, batch=work.batch)
    return about | {"parameters": work.parameters()} | times.summary()


def goal(method: Method, stages: int) -> float | None:
    """The ratio that the engine should keep to; None for methods that do other work as well.

    >>> from hocket.methods import BP, DGL, FDG, FR
    >>> [goal(method(), stages=2) for method in (BP, FDG, FR, DGL)]
    [1.03, 1.1, 1.45, None]
    """
    if not method.signal.needs_gradient:
        return None
    if method.delay(0, stages) == 0:
        return GOAL_OF_BP
    return GOAL_OF_RECOMPUTE if method.linearize == "recompute" else GOAL


def _check(rows: Sequence[str], numbers: dict[str, int]) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = too_small(numbers)
    if not rows:
        problems.append("there are no rows; give at least one")
    for row in rows:
        if row != PLAIN:
            parse_method(row)
    if problems:
        raise OptionError(listed("cannot measure overhead", problems))


def _line(found: dict[str, Any]) -> str:
    """A measured row in a few words."""
    peak = "" if found["peak_mib"] is None else f", {found['peak_mib']:.0f} MiB"
    low, high = found["ratio_min"], found["ratio_max"]
    return f"{found['row']}: {found['ratio']:.3f} ({low:.3f} to {high:.3f}){peak}"
