"""Samples per second of methods and baselines, compared with back-propagation on one core."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.balance import Balancer
from benchmarks.harness.link_times import TimedRow, started_rows
from benchmarks.harness.record import Record
from benchmarks.harness.repetition import (
    NoisePolicy,
    Repetition,
    TimedSteps,
    run_repetition,
    summarize_turns,
    take_turn,
)
from benchmarks.harness.rounds import run_rounds
from benchmarks.harness.settings import StepSettings, check_settings, select_fields
from benchmarks.harness.slowed import slowed
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers.pipeline import SCHEDULES
from benchmarks.peers.rows import BASE, build_baseline, parse_row
from hocket.options.ranges import Range, out_of_range

LIMIT = "independent"
SCHEDULED = tuple(f"{name}:microbatches={count}" for name in SCHEDULES for count in (2, 4, 8))
DECOUPLED = (
    "fdg",
    "fdg:order=forward-first",
    "fdg:extra_delay=1",
    "adl:accumulate=4",
    "dgl",
    "ddg",
    "fr",
)
ROWS = (BASE, "bp-all", "independent", "ddp", "fdg-by-hand", *DECOUPLED, *SCHEDULED)
QUIET = NoisePolicy(foreign=0.04, retries=3, patience_s=20)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SpeedSettings(StepSettings):
    """Settings of the comparison of speeds.

    Attributes:
        out: Folder of the record.
        rows: Rows to time, each as ``name`` or ``name:option=value,option=value``.
        base: Row that is always timed as well, and that the others are compared with.
        repetitions: Rounds in which every row has one turn; ratios are taken in each round.
        steps: Timed steps in a turn, or more: whole periods of a row that accumulates or meets.
        stages: Number of processes of the rows with several processes.
        at_once: Rows whose processes are in memory at the same time, except the base.
        slow: Speed of the last process of rows with several, where the others have 1. To see
            what cuts by speed gain: ``--slow 0.5 --base 'fdg:speeds="1,1"' --rows
            'fdg:speeds="1,0.5"' --rows independent``.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/speed")
    rows: Sequence[str] = ROWS
    base: str = BASE
    repetitions: int = 5
    steps: int = 4
    stages: int = 2
    at_once: int = 6
    slow: float = 1.0

    def __post_init__(self) -> None:
        for row in (self.base, *self.rows):
            parse_row(row)
        numbers = ("repetitions", "steps", "batch", "stages", "threads", "at_once")
        check_settings(
            "cannot measure speed",
            self,
            at_least={1: numbers},
            not_empty=("rows",),
            problems=out_of_range(self, {"slow": Range(above=0, most=1)}),
        )


DEFAULTS = SpeedSettings()


def measure_speed(settings: SpeedSettings = DEFAULTS) -> None:
    """Time every row in separate processes, in rounds, and write the record.

    Raises:
        CutError: There are fewer layers than stages.
        HocketError: A process failed.
    """
    work = Workload(**select_fields(settings, Workload))
    record = Record.from_settings(
        "speed", settings, rate=work.rate, momentum=0.9, foreign=QUIET.foreign
    )
    others = [row for row in dict.fromkeys(settings.rows) if row != settings.base]
    size = settings.at_once
    groups = [others[first : first + size] for first in range(0, len(others), size)] or [[]]
    balance = Balancer(work)
    measured: list[dict[str, Any]] = []
    for group in groups:
        rows = _time_group([settings.base, *group], settings, work, balance)
        # The base is timed with every group; its row comes from the first group.
        measured += rows[1:] if measured else rows
    record.with_rows(measured).write(settings.out)


def _time_group(
    names: Sequence[str], settings: SpeedSettings, work: Workload, balance: Balancer
) -> list[dict[str, Any]]:
    """Return the rows of these names, the first of which is the base, timed together."""
    rows = [TimedRow(name, build_baseline(name, work, balance), work) for name in names]
    with started_rows(rows) as by_name:
        # Let each allocate the memory that it will need, and time them in turns.
        worlds = [by_name[name] for name in names]
        for world in worlds:
            run_repetition(world, TimedSteps(1))
        repeats = [partial(_repeat, *pair, settings) for pair in zip(rows, worlds, strict=True)]
        turns = run_rounds(
            [partial(take_turn, repeat, QUIET) for repeat in repeats], settings.repetitions
        )

        # Build the rows.
        samples = [
            taken[0].counted.steps * world.query(attrgetter("samples"))[0]
            for world, taken in zip(worlds, turns, strict=True)
        ]
        measured: list[dict[str, Any]] = []
        for name, world, taken, finished in zip(names, worlds, turns, samples, strict=True):
            row: dict[str, Any] = {
                "row": parse_row(name).label,
                "processes": world.baseline.processes,
                "threads": world.baseline.threads,
                "choices": world.baseline.describe(),
                "peak_mib": world.peak_mib(),
            }
            row |= summarize_turns(
                taken, turns[0], samples=finished, base_samples=samples[0], policy=QUIET
            )
            print(_summarize_row(row), file=sys.stderr, flush=True)
            measured.append(row)
    limits = [row["ratios"] for row in measured if row["row"] == LIMIT]
    for row, limit in product(measured, limits):
        pairs = zip(row["ratios"], limit, strict=True)
        row["of_limit"] = median(ratio / most for ratio, most in pairs)
    return measured


def _repeat(row: TimedRow, world: RowProcesses, settings: SpeedSettings) -> Repetition:
    """Run whole periods of a row, whose last process is slowed if it has several."""
    steps = math.ceil(settings.steps / row.period) * row.period
    speed = settings.slow if world.baseline.processes > 1 else 1.0
    with slowed(world.last_process, speed):
        return run_repetition(world, TimedSteps(steps))


def _summarize_row(row: Mapping[str, Any]) -> str:
    low, high = row["ratio_min"], row["ratio_max"]
    return (
        f"{row['row']}: {row['samples_per_s']:.1f}/s, {row['ratio']:.3f} "
        f"({low:.3f} to {high:.3f}), {max(row['peak_mib']):.0f} MiB"
    )
