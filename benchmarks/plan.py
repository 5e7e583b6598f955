"""Comparison of the forecasts of `hocket plan` with times and memory of real processes."""

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness.process_memory import release_free_memory, reset_peak
from benchmarks.harness.record import Record
from benchmarks.harness.repetition import TimedSteps, run_repetition
from benchmarks.harness.settings import check_settings
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers import PreparedTraining
from benchmarks.peers.baseline import network_state
from benchmarks.peers.decoupled import Decoupled
from hocket.errors import unknown_name
from hocket.methods import parse_method
from hocket.options import Named
from hocket.partition import Plan
from hocket.planner.forecast import Forecast
from hocket.planner.predict import cut_by_time, predict_all
from hocket.planner.rehearsals import Candidate
from hocket.runs.peak_memory import peak_mib
from hocket.transport.codecs import Exact

ROWS = ("bp", "fdg", "ddg", "dgl")
IMAGES = (3, 32, 32)


def _build_workload(
    network: str, batch: int, shape: tuple[int, ...] = IMAGES, vocab: int | None = None
) -> Workload:
    return Workload(
        network=network,
        shape=shape,
        batch=batch,
        stages=2,
        threads=1,
        channels_last=True,
        vocab=vocab,
    )


# One core computes two to ten of these batches in a second.
NETWORKS: Mapping[str, Workload] = MappingProxyType(
    {
        "resnet20": _build_workload("resnet20", 64),
        "resnet56": _build_workload("resnet56", 32),
        "wrn28_10": _build_workload("wrn28_10", 2),
        "convnext": _build_workload("hf_convnext", 32),
        "gpt2": _build_workload("hf_gpt2", 32, (64,), vocab=65),
        "mlp": _build_workload("mlp:hidden=[2048,2048,2048]", 128, (784,)),
    }
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Settings of the comparison of forecasts.

    Attributes:
        out: Folder of the record.
        networks: Networks, by their names in `NETWORKS`.
        rows: Methods, each as ``name`` or ``name:option=value,option=value``.
        stages: Number of stages K, a process for each, cut by measured times.
        repetitions: Rounds; in each, there is a forecast for each network, and each row has a
            turn before and a turn after it.
        steps: Timed steps in a turn.
        threads: PyTorch threads in each process.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/plan")
    networks: Sequence[str] = tuple(NETWORKS)
    rows: Sequence[str] = ROWS
    stages: int = 2
    repetitions: int = 3
    steps: int = 4
    threads: int = 1

    def __post_init__(self) -> None:
        problems = [
            unknown_name("network", name, list(NETWORKS))
            for name in self.networks
            if name not in NETWORKS
        ]
        for row in self.rows:
            method = parse_method(row)
            if method.free_running:
                problems.append(f"the stages of {row!r} run freely, and take no common steps")
            if self.steps % method.accumulate:
                problems.append(
                    f"row {row!r} accumulates {method.accumulate} gradients; give a number of "
                    f"steps that is a multiple of it instead of {self.steps}"
                )
        check_settings(
            "cannot compare forecasts",
            self,
            at_least={1: ("repetitions", "steps", "threads"), 2: ("stages",)},
            not_empty=("networks", "rows"),
            problems=problems,
        )


DEFAULTS = PlanSettings()


def measure_plan(settings: PlanSettings = DEFAULTS) -> None:
    """Forecast and measure every method on every network alternately, and write the record.

    The forecasts are those of `hocket plan --same-machine`: the stages share this machine.

    Raises:
        HocketError: A process failed.
    """
    batches = {name: NETWORKS[name].batch for name in settings.networks}
    record = Record.from_settings("plan", settings, batches=batches)
    measured: list[dict[str, Any]] = []
    total = len(settings.networks) * settings.repetitions
    progress = Progress(console=Console(stderr=True), transient=True)
    with torch_threads(settings.threads), progress as bar:
        task = bar.add_task("", total=total)
        for name in settings.networks:
            bar.update(task, description=name)
            rows = _compare_network(name, settings, partial(bar.advance, task))
            for row in rows:
                print(_summarize_row(row), file=sys.stderr, flush=True)
            measured += rows
    record.with_rows(measured).write(settings.out)


def _compare_network(
    name: str, settings: PlanSettings, advance: Callable[[], None]
) -> list[dict[str, Any]]:
    """Return the rows of all methods on one network."""
    work = replace(NETWORKS[name], stages=settings.stages, threads=settings.threads)
    steps = TimedSteps(settings.steps)
    build = work.network_and_batch
    (candidates,) = cut_by_time(build, [work.stages], settings.rows)
    forecasts: list[list[Forecast]] = []
    steps_s: list[list[float]] = []
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(RowProcesses(one.method, _build_baseline(one, work), work))
            for one in candidates
        ]
        for _ in range(settings.repetitions):
            # Before and after, as the machine's speed drifts during the rehearsals.
            before = [run_repetition(world, steps).step_s for world in worlds]
            forecasts.append(
                predict_all(build, candidates, contended=True, repeat_reversed=False)
            )
            after = [run_repetition(world, steps).step_s for world in worlds]
            steps_s.append([mean(both) for both in zip(before, after, strict=True)])
            advance()
    return [
        {"network": name, "measured_mib": _measure_added_mib(work, candidate)}
        | _build_row(
            candidate,
            work.batch,
            [round_forecasts[index] for round_forecasts in forecasts],
            [round_steps_s[index] for round_steps_s in steps_s],
        )
        for index, candidate in enumerate(candidates)
    ]


def _build_row(
    candidate: Candidate, batch: int, forecasts: Sequence[Forecast], steps_s: Sequence[float]
) -> dict[str, Any]:
    """Return forecast and measured times of one method.

    Args:
        candidate: The method and its cut.
        batch: Samples in a step.
        forecasts: The forecast of each round.
        steps_s: Seconds of a step in each round.
    """
    predicted_ms = [1000 * forecast.tick_s / batch for forecast in forecasts]
    measured_ms = [1000 * step_s / batch for step_s in steps_s]
    ratios = [p / m for p, m in zip(predicted_ms, measured_ms, strict=True)]
    return {
        "row": Named.parse(candidate.method).label,
        "cuts": list(candidate.cuts),
        "predicted_ms": median(predicted_ms),
        "measured_ms": median(measured_ms),
        "ratio": median(ratios),
        "ratios": ratios,
        # Without weights; half of the memory counted as weights are their gradients.
        "predicted_mib": [one.total - one.weights / 2 for one in forecasts[-1].memory],
    }


@dataclass(frozen=True)
class TrimmedBaseline:
    """A method whose processes return freed memory at once, and have not begun to train.

    Attributes:
        method: The method.
    """

    method: Decoupled

    @property
    def processes(self) -> int:
        """Number of processes, one for each stage."""
        return self.method.processes

    @property
    def threads(self) -> int:
        """Number of PyTorch threads in each process."""
        return self.method.threads

    def describe(self) -> dict[str, Any]:
        """Return the choices of the method."""
        return self.method.describe()

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the stage of this process, before its first batch."""
        release_free_memory()
        workload.plain_step()()  # kernels keep buffers of their own, which are not forecast
        trainer = workload.build_trainer(self.method.method, self.method.plan)
        state = network_state(trainer.network)
        return PreparedTraining(workload.trainer_step(trainer), workload.batch, state)


@dataclass(frozen=True)
class PeakMemoryQuery:
    """Query: return the peak memory that several steps add, in MiB.

    Attributes:
        steps: Number of steps.
    """

    steps: int

    def __call__(self, training: PreparedTraining) -> float:
        """Answer in the process."""
        gc.collect()
        release_free_memory()
        before_mib = reset_peak()
        for _ in range(self.steps):
            training.step()
        return peak_mib() - before_mib


def _measure_added_mib(work: Workload, candidate: Candidate) -> list[float]:
    """Return the peak memory that training adds to each process, in MiB."""
    baseline = _build_baseline(candidate, work)
    steps = work.warmup_steps(baseline.method) + 2
    with RowProcesses(candidate.method, TrimmedBaseline(baseline), work) as world:
        peaks_mib: list[float] = world.query(PeakMemoryQuery(steps))
        return peaks_mib


def _build_baseline(candidate: Candidate, work: Workload) -> Decoupled:
    method = parse_method(candidate.method)
    return Decoupled(method, Exact(), work.threads, Plan(candidate.cuts))


def _summarize_row(row: Mapping[str, Any]) -> str:
    pairs = zip(row["predicted_mib"], row["measured_mib"], strict=True)
    memory = ", ".join(f"{predicted:.0f} for {measured:.0f}" for predicted, measured in pairs)
    return (
        f"{row['network']}, {row['row']}: {row['predicted_ms']:.2f} ms forecast for "
        f"{row['measured_ms']:.2f}, ratio {row['ratio']:.3f}; MiB {memory}"
    )
