"""Speed of methods on several numbers of stages, measured and computed with a core for each."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from cyclopts import Parameter
from torch import distributed

from benchmarks.harness.balance import Balancer
from benchmarks.harness.record import Record
from benchmarks.harness.rounds import median_fractions
from benchmarks.harness.settings import check_settings, select_fields
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Step, Workload
from benchmarks.peers import PreparedTraining
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.rows import BUILDERS, build_baseline, parse_row
from hocket.methods import METHODS
from hocket.planner.replay import replay_timeline
from hocket.timeline import Timeline, Totals

ROWS = ("fdg", "adl:accumulate=4", "dgl", "ddg", "fr")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StagesSettings:
    """Settings of the measurement of several numbers of stages.

    Attributes:
        out: Folder of the record.
        rows: Methods, each as ``name`` or ``name:option=value,option=value``.
        counts: Numbers of stages.
        repetitions: Repetitions, each alternating with plain back-propagation.
        steps: Timed steps of a repetition; 2 or more, as a tick is the time between two.
        batch: Samples in a step.
        network: Name in the zoo.
        shape: Shape of one input, without the batch dimension.
        threads: PyTorch threads in each process.
        channels_last: Use the channels-last memory format.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/stages")
    rows: Sequence[str] = ROWS
    counts: Sequence[int] = (2, 3, 4)
    repetitions: int = 3
    steps: int = 8
    batch: int = 128
    network: str = "resnet20"
    shape: tuple[int, ...] = (3, 32, 32)
    threads: int = 1
    channels_last: bool = True

    def __post_init__(self) -> None:
        problems = [f"a count is {n}; give 2 or more" for n in self.counts if n < 2]
        # Rows such as bp and gpipe are baselines of that name, without Hocket's stages.
        methods = [name for name in METHODS if name not in BUILDERS]
        problems += [
            f"the row {row!r} is no method with stages; choose one of {', '.join(methods)}"
            for row in self.rows
            if parse_row(row).name not in methods
        ]
        check_settings(
            "cannot measure numbers of stages",
            self,
            at_least={1: ("repetitions", "batch", "threads"), 2: ("steps",)},
            not_empty=("rows", "counts"),
            problems=problems,
        )


DEFAULTS = StagesSettings()


def measure_stages(settings: StagesSettings = DEFAULTS) -> None:
    """Time methods on several numbers of stages, and replay them with a core for each stage.

    Raises:
        CutError: There are fewer layers than stages.
        HocketError: A process failed.
    """
    base = Workload(**select_fields(settings, Workload) | {"stages": 1})
    record = Record.from_settings("stages", settings)
    times_s = Balancer(base).times_s
    measured = []
    for count in settings.counts:
        work = replace(base, stages=count)
        for name in settings.rows:
            baseline = build_baseline(name, work, Balancer(work, times_s))
            assert isinstance(baseline, Decoupled)
            row = {
                "row": parse_row(name).label,
                "stages": count,
                "choices": baseline.describe(),
            }
            row |= _time_processes(name, baseline, work, settings)
            row |= _replay_serial(baseline, work, settings)
            print(_summarize_row(row), file=sys.stderr, flush=True)
            measured.append(row)
    record.with_rows(measured).write(settings.out)


@dataclass(frozen=True)
class TickShares:
    """Time that a process spent on several ticks.

    Attributes:
        wall_s: Seconds.
        spent: Busy, sending and waiting times.
    """

    wall_s: float
    spent: Totals


@dataclass(frozen=True)
class TimedTicks:
    """Query: take several steps without a pause, and tell how their time was spent.

    Attributes:
        number: Number of timed steps.
    """

    number: int

    def __call__(self, training: PreparedTraining) -> TickShares:
        """Answer in the process."""
        assert training.recorder is not None
        distributed.barrier()
        training.step()
        before, start_s = training.recorder.totals, perf_counter()
        for _ in range(self.number):
            training.step()
        end_s, after = perf_counter(), training.recorder.totals
        return TickShares(end_s - start_s, after.since(before))


def _time_processes(
    row: str, baseline: Decoupled, work: Workload, settings: StagesSettings
) -> dict[str, Any]:
    """Time a process for each stage, on the cores of this machine."""
    with RowProcesses(row, baseline, work) as world:
        repetitions: list[list[TickShares]] = [
            world.query(TimedTicks(settings.steps)) for _ in range(settings.repetitions)
        ]
    fractions = [
        [share.spent.as_fractions(share.wall_s) for share in shares] for shares in repetitions
    ]
    return {
        "ticks_per_s": median(
            settings.steps / max(share.wall_s for share in shares) for shares in repetitions
        ),
        **{
            name: median_fractions(fractions, name)
            for name in ("busy", "communication", "waiting")
        },
    }


def _replay_serial(
    baseline: Decoupled, work: Workload, settings: StagesSettings
) -> dict[str, Any]:
    """Time all stages in this process, one after the other, and replay them in parallel."""
    steps = settings.steps
    with torch_threads(work.threads):
        plain = work.plain_step()
        trainer = work.build_trainer(baseline.method, baseline.plan, record_timeline=True)
        step = work.trainer_step(trainer)
        for _ in range(work.warmup_steps(baseline.method)):
            step()
        plain()
        ratios, waiting = [], []
        for _ in range(settings.repetitions):
            begin = len(trainer.timeline().batches)
            plain_s = []
            for _ in range(steps):  # alternating, as the machine's speed drifts
                step()
                plain_s.append(_time_step(plain))
            timeline = replay_timeline(trainer.timeline(), baseline.method, work.stages)
            # From the first batch of this repetition to the first of the next.
            window = timeline.window(begin, steps)
            ratios.append(median(plain_s) / slowest_tick_s(timeline, steps))
            fractions = window.fractions()
            waiting.append([fractions[stage].waiting for stage in range(work.stages)])
    return {
        "computed_speed_up": median(ratios),
        "computed_waiting": [median(shares) for shares in zip(*waiting, strict=True)],
    }


def slowest_tick_s(timeline: Timeline, ticks: int) -> float:
    """Return the seconds between forwards of the slowest stage, over the last ticks.

    Stages before it that wait for no gradient run ahead of it, but only for a while.
    """
    forwards = [span for span in timeline.spans if span.kind == "F"]
    starts_s = [
        [span.start_s for span in forwards if span.stage == stage][-ticks:]
        for stage in {span.stage for span in forwards}
    ]
    return max((one[-1] - one[0]) / (ticks - 1) for one in starts_s)


def _time_step(step: Step) -> float:
    start_s = perf_counter()
    step()
    return perf_counter() - start_s


def _summarize_row(row: Mapping[str, Any]) -> str:
    waiting = ", ".join(f"{share:.0%}" for share in row["waiting"])
    return (
        f"{row['stages']} stages, {row['row']}: {row['ticks_per_s']:.2f} ticks/s, "
        f"waiting {waiting}; computed {row['computed_speed_up']:.2f} times bp"
    )
