"""Comparison of the serial engine with loops in plain PyTorch that do the same work."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.memory import measure_peak_mib, predicted_memory
from benchmarks.harness.record import Record
from benchmarks.harness.rounds import TimedStep, summarize_pairs, time_turns
from benchmarks.harness.settings import StepSettings, check_settings, select_fields
from benchmarks.harness.workload import PLAIN, Workload, count_extra_parameters, torch_threads
from benchmarks.short_steps import SHORT_ROWS, short_step_row
from hocket.methods import parse_method
from hocket.methods.method import Method
from hocket.options import Named
from hocket.remedies.registry import split_remedies

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
    "fdg+t1",
    "fdg+predict",
)
GOAL_OF_BP = 1.03
GOAL = 1.10
GOAL_OF_RECOMPUTE = 1.45
GOALS_OF_REMEDIES = {"t1": 1.03, "staleness-rate": 1.03, "predict": 1.12}
"""Largest ratios of a method with a remedy to the same method without it."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OverheadSettings(StepSettings):
    """Settings of the comparison with a plain loop.

    Attributes:
        out: Folder of the record.
        rows: Methods, each as ``method`` or ``method:option=value,option=value``, and remedies
            after a plus sign; ``plain`` is another plain loop, which shows the noise. A method
            with remedies is timed in the same rounds as the method without them.
        pairs: Blocks of each side; the ratio is the median over pairs.
        steps: Timed steps in a block.
        stages: Number of stages K, cut as in the paper that used the network, else balanced.
        memory: Measure the peak memory as well, in a process for each row.
        compile: Compile the network of the plain loop, and the stages. Leaves out memory, which
            would be the compiler's, and the rows of short steps, which have a loop by hand.
        short_rounds: Rounds of the rows of short steps, whose network is a small perceptron; 0
            to leave them out.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/overhead")
    rows: Sequence[str] = ROWS
    pairs: int = 7
    steps: int = 8
    stages: int = 2
    memory: bool = True
    compile: bool = False
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
        if settings.memory and not settings.compile:
            row |= measure_peak_mib(work, name, settings.steps)
        measured.append(row)
        line = f"[{number}/{len(settings.rows)}] {_summarize_row(row)}"
        print(line, file=sys.stderr, flush=True)
    has_short_rows = settings.short_rounds and not settings.compile
    for short in SHORT_ROWS if has_short_rows else ():
        row = short_step_row(short, rounds=settings.short_rounds)
        measured.append(row)
        line = (
            f"{row['row']}: {row['ratio']:.2f}, {row['above_ms']:.2f} ms above a loop by hand"
        )
        print(line, file=sys.stderr, flush=True)
    record.with_rows(measured).write(settings.out)


def time_row(work: Workload, row: str, *, pairs: int, steps: int) -> dict[str, Any]:
    """Time a row: ``plain`` or a method, perhaps with remedies.

    Returns:
        The times of `summarize_pairs`, the goal of the ratio, and facts about the row; with
        remedies also the comparison with the method without them, under ``base`` keys.
    """
    with torch_threads(work.threads):
        # Build the loops, fill their pipelines, and time them in turns.
        loops: dict[str, TimedStep] = {"plain": work.plain_step()}
        method, extra, warmup = None, 0, 1
        if row == PLAIN:
            loops["row"] = work.plain_step()
        else:
            method = parse_method(row)
            trainer = work.build_trainer(method)
            extra, warmup = count_extra_parameters(trainer), work.warmup_steps(method)
            loops["row"] = work.trainer_step(trainer)
            if method.remedies:
                base = work.build_trainer(replace(method, remedies=()))
                loops["base"] = work.trainer_step(base)
        for loop in loops.values():
            for _ in range(warmup):
                loop()
        blocks = time_turns(loops, rounds=pairs, steps=steps)

    # Compare the row with the plain loop, and with the method without remedies.
    def beside(base: str) -> dict[str, Any]:
        return summarize_pairs(blocks[base], blocks["row"], steps * work.batch)

    late = method is not None and method.signal.needs_gradient
    found = {
        "row": row if method is None else Named.parse(row).label,
        "linearize": method.linearize if method is not None and late else None,
        "goal": None if method is None else ratio_goal(method, work.stages),
        "extra_parameters": extra,
        "parameters": work.parameter_count(),
    }
    if method is not None and method.remedies:
        found |= _base_facts(method, row, beside("base"))
    return found | beside("plain")


def _base_facts(method: Method, row: str, times: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a row with remedies compared with the same method without them."""
    names = [remedy.name for remedy in method.remedies]
    return {
        "base": Named.parse(split_remedies(row)[0]).label,
        "base_ratio": times["ratio"],
        "base_ratio_min": times["ratio_min"],
        "base_ratio_max": times["ratio_max"],
        "base_sample_s": times["plain_sample_s"],
        "base_goal": GOALS_OF_REMEDIES.get(names[0]) if len(names) == 1 else None,
    }


def ratio_goal(method: Method, stages: int) -> float | None:
    """Return the largest ratio that the engine should have; None for methods with extra work.

    Remedies are extra work, whose goal is a ratio to the method without them.

    >>> from hocket.methods import BP, DGL, FDG, FR
    >>> [ratio_goal(method(), stages=2) for method in (BP, FDG, FR, DGL)]
    [1.03, 1.1, 1.45, None]
    """
    if method.remedies or not method.signal.needs_gradient:
        return None
    if method.delay(0, stages) == 0:
        return GOAL_OF_BP
    return GOAL_OF_RECOMPUTE if method.linearize == "recompute" else GOAL


def _summarize_row(row: Mapping[str, Any]) -> str:
    peak = f", {row['peak_mib']:.0f} MiB" if "peak_mib" in row else ""
    beside = f", {row['base_ratio']:.3f} of {row['base']}" if "base" in row else ""
    low, high = row["ratio_min"], row["ratio_max"]
    return f"{row['row']}: {row['ratio']:.3f} ({low:.3f} to {high:.3f}){beside}{peak}"
