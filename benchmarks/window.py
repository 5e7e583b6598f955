"""Forecasts of the window law beside measured times, over links with latency."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.nodes import Node
from benchmarks.harness.record import Record
from benchmarks.harness.relay import Relay, relayed_nodes
from benchmarks.harness.settings import check_settings, select_fields
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.link import TimedFlow
from benchmarks.peers.decoupled import Decoupled
from hocket.codecs import Exact
from hocket.methods import parse_method
from hocket.options import Named
from hocket.partition import Plan
from hocket.partition.costs.link import Link
from hocket_lab.planner.forecast import Forecast
from hocket_lab.planner.predict import cut_by_time, hide_link, predict_all
from hocket_lab.planner.rehearsals import Candidate
from hocket_lab.planner.window import law_tick_s

ROWS = ("bp", "ddg", "fdg", "fdg:order=forward-first")
BITS_PER_MBIT = 1e6


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WindowSettings:
    """Settings of the comparison over links with latency.

    Attributes:
        out: Folder of the record.
        rows: Methods, each as ``name`` or ``name:option=value``. One whose stages would wait
            for packets is measured with the extra delay that hides the link, too.
        stages: Numbers of stages, each stage on a node of its own.
        latency_ms: Latencies of the link in each direction, in milliseconds.
        mbit_s: Rate of the link in each direction, in Mbit/s.
        repetitions: Rounds in which every row has one turn.
        steps: Timed steps in a turn.
        batch: Samples in a step.
        network: Name in the zoo, with options.
        shape: Shape of one input, without the batch dimension.
        threads: PyTorch threads in each process.
        channels_last: Use the channels-last memory format.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/window")
    rows: Sequence[str] = ROWS
    stages: Sequence[int] = (2, 3)
    latency_ms: Sequence[float] = (0, 5, 20)
    mbit_s: float = 1000
    repetitions: int = 3
    steps: int = 30
    batch: int = 64
    network: str = "mlp:hidden=[1024,1024,1024,1024]"
    shape: tuple[int, ...] = (3, 32, 32)
    threads: int = 1
    channels_last: bool = False

    def __post_init__(self) -> None:
        problems = [
            f"a number of stages is {stages}; give 2 or more"
            for stages in self.stages
            if stages < 2
        ]
        problems += [
            f"a latency is {latency}; give 0 or more"
            for latency in self.latency_ms
            if not latency >= 0
        ]
        if not self.mbit_s > 0:
            problems.append(f"mbit_s is {self.mbit_s}; give a number above 0")
        for row in self.rows:
            if parse_method(row).free_running:
                problems.append(f"the stages of {row!r} run freely, and take no common steps")
        check_settings(
            "cannot measure over links with latency",
            self,
            at_least={1: ("repetitions", "steps", "batch", "threads")},
            not_empty=("rows", "stages", "latency_ms"),
            problems=problems,
        )


DEFAULTS = WindowSettings()


def measure_window(settings: WindowSettings = DEFAULTS) -> None:
    """Forecast and time methods on nodes of this machine, over links with latency; needs root.

    The forecasts are those of `hocket plan --same-machine` with that link.

    Raises:
        NodesError: This machine cannot provide such nodes.
        HocketError: A process failed.
    """
    record = Record.from_settings("window", settings)
    measured = []
    with torch_threads(settings.threads):
        for stages in settings.stages:
            work = Workload(**select_fields(settings, Workload) | {"stages": stages})
            with relayed_nodes(stages) as (nodes, relay):
                for latency_ms in settings.latency_ms:
                    measured += _measure_latency(work, nodes, relay, latency_ms, settings)
    record.with_rows(measured).write(settings.out)


def _measure_latency(
    work: Workload,
    nodes: Sequence[Node],
    relay: Relay,
    latency_ms: float,
    settings: WindowSettings,
) -> list[dict[str, Any]]:
    """Return the rows of all methods on one number of stages, over one link."""
    link = Link(settings.mbit_s * BITS_PER_MBIT / 8, latency_ms / 1000)
    relay.latency_s, relay.bytes_per_s = link.latency_s, link.bytes_per_s

    build = work.network_and_batch
    (candidates,) = cut_by_time(build, [work.stages], settings.rows, link=link)
    forecasts = predict_all(build, candidates, link=link, contended=True)
    if hiding := hide_link(forecasts):
        forecasts += predict_all(build, hiding, link=link, contended=True)
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(
                RowProcesses(one.label, _build_baseline(one, work), work, nodes=nodes)
            )
            for one in forecasts
        ]
        query = TimedFlow(-(-settings.steps // 4), settings.steps)
        rounds = [
            [max(timing.wall_s for timing in world.query(query)) for world in worlds]
            for _ in range(settings.repetitions)
        ]
    rows = [
        _build_row(forecast, [walls[index] for walls in rounds], settings)
        | {"stages": work.stages, "latency_ms": latency_ms}
        for index, forecast in enumerate(forecasts)
    ]
    for row in rows:
        print(_summarize_row(row), file=sys.stderr, flush=True)
    return rows


def _build_row(
    forecast: Forecast, walls_s: Sequence[float], settings: WindowSettings
) -> dict[str, Any]:
    method = _candidate(forecast).build_method()
    measured_ms = [1000 * wall_s / settings.steps for wall_s in walls_s]
    return {
        "row": Named.parse(forecast.method).label,
        "extra_delay": list(forecast.extra_delay),
        "staleness": max(forecast.staleness),
        "stage_ms": [1000 * stage.total_s for stage in forecast.times],
        "packet_ms": [1000 * stage.packet_s for stage in forecast.times[:-1]],
        "law_ms": 1000 * law_tick_s(method, forecast.times),
        "predicted_ms": 1000 * forecast.tick_s,
        "measured_ms": median(measured_ms),
        "measured_min": min(measured_ms),
        "measured_max": max(measured_ms),
    }


def _candidate(forecast: Forecast) -> Candidate:
    return Candidate(forecast.method, forecast.cuts, forecast.extra_delay)


def _build_baseline(forecast: Forecast, work: Workload) -> Decoupled:
    method = _candidate(forecast).build_method()
    return Decoupled(method, Exact(), work.threads, Plan(forecast.cuts))


def _summarize_row(row: Mapping[str, Any]) -> str:
    extra = ",".join(map(str, row["extra_delay"])) or "-"
    return (
        f"{row['stages']} stages, {row['latency_ms']:g} ms, {row['row']} (extra {extra}): law "
        f"{row['law_ms']:.1f}, predicted {row['predicted_ms']:.1f}, measured "
        f"{row['measured_ms']:.1f} ms ({row['measured_min']:.1f} to {row['measured_max']:.1f})"
    )
