"""Gain of cuts by speed on two processes, one of which is slower."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.link_times import NODES, TimedRow, started_rows, time_in_rounds
from benchmarks.harness.record import Record
from benchmarks.harness.settings import StepSettings, check_settings, select_fields
from benchmarks.harness.workload import Workload, torch_threads
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.plain import PlainLoop
from benchmarks.peers.rows import BASE
from hocket.codecs import Exact
from hocket.methods import parse_method
from hocket.options.ranges import Range, out_of_range
from hocket.partition import Plan
from hocket_lab.planner.devices import ALIKE, Devices
from hocket_lab.planner.forecast import Forecast
from hocket_lab.planner.predict import cut_by_time, predict_all


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class UnequalSettings(StepSettings):
    """Settings of the measurement with a slower process.

    Attributes:
        out: Folder of the record.
        methods: The methods.
        speed: Speed of the second process; that of the first one is 1.
        repetitions: Rounds in which every row has one turn.
        seconds: Length of a turn.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/unequal")
    methods: Sequence[str] = ("fdg", "dgl")
    speed: float = 0.5
    repetitions: int = 7
    seconds: float = 5

    def __post_init__(self) -> None:
        for method in self.methods:
            parse_method(method)
        check_settings(
            "cannot measure with a slower process",
            self,
            at_least={1: ("repetitions", "batch", "threads")},
            not_empty=("methods",),
            problems=out_of_range(
                self, {"speed": Range(above=0, below=1), "seconds": Range(above=0)}
            ),
        )


DEFAULTS = UnequalSettings()


def measure_unequal(settings: UnequalSettings = DEFAULTS) -> None:
    """Time equal cuts and cuts by speed in turns, with forecasts, and write the record.

    A plain loop in one process shows how exactly a process is slowed.

    Raises:
        CutError: The network cannot be cut into two stages.
        HocketError: A process failed.
    """
    work = Workload(**select_fields(settings, Workload) | {"stages": NODES})
    record = Record.from_settings("unequal", settings)
    forecasts = _forecast(settings, work)
    rows = [TimedRow(BASE, PlainLoop(1, settings.threads), work)]
    for number, forecast in enumerate(forecasts):
        plan, method = Plan(forecast.cuts), parse_method(forecast.method)
        name = f"{forecast.method}, {'cuts by speed' if number % 2 else 'equal cuts'}"
        trained = Decoupled(method, Exact(), settings.threads, plan)
        rows.append(TimedRow(name, trained, work))
    repetitions, seconds = settings.repetitions, settings.seconds
    with started_rows(rows) as worlds:
        slow, free = (
            time_in_rounds(rows, worlds, repetitions=repetitions, seconds=seconds, speed=speed)
            for speed in (settings.speed, 1.0)
        )
    measured: list[dict[str, Any]] = []
    for one, found in zip(rows, (None, *forecasts), strict=True):
        times_s = [turn.step_s for turn in slow[one.row]]
        measured.append(
            {
                "row": one.row,
                "cuts": [] if found is None else list(found.cuts),
                "slowed_s": median(times_s),
                "min_s": min(times_s),
                "max_s": max(times_s),
                "free_s": median(turn.step_s for turn in free[one.row]),
                "predicted_s": None if found is None else found.tick_s,
            }
        )
        print("{row}: {slowed_s:.3f} s a step".format(**measured[-1]), file=sys.stderr)
    # Behind each row of equal cuts is the same method with cuts by speed.
    for even, by_speed in zip(measured[1::2], measured[2::2], strict=True):
        by_speed["gain"] = even["slowed_s"] / by_speed["slowed_s"]
        by_speed["predicted_gain"] = even["predicted_s"] / by_speed["predicted_s"]
    record.with_rows(measured).write(settings.out)


def _forecast(settings: UnequalSettings, work: Workload) -> list[Forecast]:
    """Return forecasts of each method on the slower process, by equal cuts and by speed."""
    speeds, build = Devices(speeds=f"1,{settings.speed}"), work.network_and_batch
    with torch_threads(settings.threads):
        (even,), (by_speed,) = (
            cut_by_time(build, [NODES], settings.methods, devices)
            for devices in (ALIKE, speeds)
        )
        pairs = [one for pair in zip(even, by_speed, strict=True) for one in pair]
        devices = speeds.for_stages(NODES)
        return predict_all(build, [replace(one, devices=devices) for one in pairs])
