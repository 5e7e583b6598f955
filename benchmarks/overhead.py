"""Comparison of the serial engine with loops in plain PyTorch that do the same work."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.memory import measure_peak_mib, predicted_memory
from benchmarks.harness.pairs import time_pairs
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings, select_fields
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workload import PLAIN, Workload, count_extra_parameters
from benchmarks.short_steps import SHORT_ROWS, short_step_row
from hocket.methods import parse_method
from hocket.methods.method import Method
from hocket.options import Named

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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OverheadSettings:
    """Settings of the comparison with a plain loop.

    Attributes:
        out: Folder of the record.
        rows: Methods, each as ``method`` or ``method:option=value,option=value``; ``plain`` is
            another plain loop, which shows the noise.
        pairs: Blocks of each side; the ratio is the median over pairs.
        steps: Timed steps in a block.
        batch: Samples in a step.
        network: Name in the zoo.
        shape: Shape of one input, without the batch dimension.
        stages: Number of stages K, cut as in the paper that used the network, else balanced.
        threads: PyTorch threads, in this process and in those that measure memory.
        channels_last: Use the channels-last memory format.
        memory: Measure the peak memory as well, in a process for each row.
        short_rounds: Rounds of the rows of short steps, whose network is a small perceptron; 0
            to leave them out.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/overhead")
    rows: Sequence[str] = ROWS
    pairs: int = 7
    steps: int = 8
    batch: int = 128
    network: str = "resnet20"
    shape: tuple[int, ...] = (3, 32, 32)
    stages: int = 2
    threads: int = 1
    channels_last: bool = True
    memory: bool = True
    short_rounds: int = 25

    def __post_init__(self) -> None:
        for row in self.rows:
            if row != PLAIN:
                parse_method(row)
        check_settings(
            "cannot measure overhead",
            self,
            at_least={1: ("pairs", "steps", "batch", "threads"), 0: ("short_rounds",)},
            not_empty=("rows",),
        )


DEFAULTS = OverheadSettings()


def measure_overhead(settings: OverheadSettings = DEFAULTS) -> None:
    """Time every row and a plain loop alternately, and write the record.

    Raises:
        HocketError: A process that measures memory failed.
    """
    work = Workload(**select_fields(settings, Workload))
    record = Record.from_settings("overhead", settings, rate=work.rate, momentum=0.9)
    measured = []
    for number, name in enumerate(settings.rows, start=1):
        row = time_row(work, name, pairs=settings.pairs, steps=settings.steps)
        row |= predicted_memory(work, name)
        if settings.memory:
            row |= measure_peak_mib(work, name, settings.steps)
        measured.append(row)
        line = f"[{number}/{len(settings.rows)}] {_summarize_row(row)}"
        print(line, file=sys.stderr, flush=True)
    for name, stages in SHORT_ROWS if settings.short_rounds else ():
        row = short_step_row(name, stages, rounds=settings.short_rounds)
        measured.append(row)
        line = (
            f"{row['row']}: {row['ratio']:.2f}, {row['above_ms']:.2f} ms above a loop by hand"
        )
        print(line, file=sys.stderr, flush=True)
    record.with_rows(measured).write(settings.out)


def time_row(work: Workload, row: str, *, pairs: int, steps: int) -> dict[str, Any]:
    """Time a row.

    Args:
        work: The workload.
        row: ``plain`` or a method.
        pairs: Blocks of each side.
        steps: Timed steps in a block.

    Returns:
        The times of `PairedTimes.summary`, the goal of the ratio, and facts about the row.
    """
    with torch_threads(work.threads):
        plain = work.plain_step()
        plain()
        if row == PLAIN:
            facts: dict[str, Any] = {
                "row": PLAIN,
                "linearize": None,
                "goal": None,
                "extra_parameters": 0,
            }
            other = work.plain_step()
            other()
        else:
            method = parse_method(row)
            trainer = work.build_trainer(method)
            facts = {
                "row": Named.parse(row).label,
                "linearize": method.linearize if method.signal.needs_gradient else None,
                "goal": ratio_goal(method, work.stages),
                "extra_parameters": count_extra_parameters(trainer),
            }
            other = work.trainer_step(trainer)
            for _ in range(work.warmup_steps(method)):
                other()
        times = time_pairs(plain, other, pairs=pairs, steps=steps, batch=work.batch)
    return facts | {"parameters": work.parameter_count()} | times.summary()


def ratio_goal(method: Method, stages: int) -> float | None:
    """Return the largest ratio that the engine should have; None for methods with extra work.

    >>> from hocket.methods import BP, DGL, FDG, FR
    >>> [ratio_goal(method(), stages=2) for method in (BP, FDG, FR, DGL)]
    [1.03, 1.1, 1.45, None]
    """
    if not method.signal.needs_gradient:
        return None
    if method.delay(0, stages) == 0:
        return GOAL_OF_BP
    return GOAL_OF_RECOMPUTE if method.linearize == "recompute" else GOAL


def _summarize_row(row: Mapping[str, Any]) -> str:
    peak = f", {row['peak_mib']:.0f} MiB" if "peak_mib" in row else ""
    low, high = row["ratio_min"], row["ratio_max"]
    return f"{row['row']}: {row['ratio']:.3f} ({low:.3f} to {high:.3f}){peak}"
