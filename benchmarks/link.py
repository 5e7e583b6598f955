"""Speed of methods and baselines on two nodes over links of several rates."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.balance import Balancer
from benchmarks.harness.link_times import NODES, TimedRow, started_rows, time_in_rounds
from benchmarks.harness.nodes import two_nodes
from benchmarks.harness.record import Record
from benchmarks.harness.repetition import Repetition
from benchmarks.harness.settings import StepSettings, check_settings, select_fields
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers.rows import build_baseline, parse_row

ROWS = ("bp", "ddp", "1f1b:microbatches=4", "1f1b:microbatches=8", "fdg", "fdg:extra_delay=1")
MIB = 2**20


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LinkSettings(StepSettings):
    """Settings of the measurement over links.

    Attributes:
        out: Folder of the record.
        rows: Rows to time, each as ``name`` or ``name:option=value``; methods of Hocket take
            their own options, ``extra_delay`` and ``codec``. Rows with one process run on one
            node.
        mbit_s: Rates of the link in each direction, in Mbit/s.
        repetitions: Rounds in which every row has one turn, at every rate.
        seconds: Length of a turn.
        network: Name in the zoo, with options. The default has many weights compared with its
            activations: sending activations instead of gradients pays there.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/link")
    rows: Sequence[str] = ROWS
    mbit_s: Sequence[float] = (1000, 300, 100)
    repetitions: int = 5
    seconds: float = 3
    network: str = "mlp:hidden=[2048,2048,2048,2048]"

    def __post_init__(self) -> None:
        for row in self.rows:
            parse_row(row)
        check_settings(
            "cannot measure over a link",
            self,
            at_least={1: ("repetitions", "batch", "threads")},
            not_empty=("rows", "mbit_s"),
            problems=[
                f"{name} is {number}; give a number above 0"
                for name, numbers in (("mbit_s", self.mbit_s), ("seconds", [self.seconds]))
                for number in numbers
                if not number > 0
            ],
        )


DEFAULTS = LinkSettings()


def measure_link(settings: LinkSettings = DEFAULTS) -> None:
    """Time every row on two nodes of this machine, over links of these rates; needs root.

    Raises:
        NodesError: This machine cannot provide two network namespaces.
        HocketError: A process failed.
    """
    work = Workload(**select_fields(settings, Workload) | {"stages": NODES})
    record = Record.from_settings("link", settings, parameters=work.parameter_count())
    balance = Balancer(work)
    rows = [
        TimedRow(row, build_baseline(row, work, balance), work)
        for row in dict.fromkeys(settings.rows)
    ]
    measured = []
    with two_nodes() as link, started_rows(rows, link.nodes) as worlds:
        for rate in settings.mbit_s:
            link.limit(rate)
            turns = time_in_rounds(
                rows, worlds, repetitions=settings.repetitions, seconds=settings.seconds
            )
            for one in rows:
                row = {"mbit_s": rate} | _build_row(one, worlds[one.row], turns[one.row])
                print(_summarize_row(row), file=sys.stderr, flush=True)
                measured.append(row)
    record.with_rows(measured).write(settings.out)


def _build_row(
    one: TimedRow, world: RowProcesses, turns: Sequence[Repetition]
) -> dict[str, Any]:
    """Return the choices of a row, and median and range over rounds."""
    samples = world.query(attrgetter("samples"))[0]
    times_ms = [1000 * turn.step_s / samples for turn in turns]
    steps = turns[0].steps
    return {
        "row": parse_row(one.row).label,
        "processes": one.baseline.processes,
        "threads": one.baseline.threads,
        "choices": one.baseline.describe(),
        "steps": steps,
        "sent_mib": [sent / MIB / steps for sent in turns[0].sent_bytes],
        "ms_per_sample": median(times_ms),
        "ms_min": min(times_ms),
        "ms_max": max(times_ms),
    }


def _summarize_row(row: Mapping[str, Any]) -> str:
    return (
        f"{row['mbit_s']:g} Mbit/s, {row['row']}: {row['ms_per_sample']:.2f} ms/sample "
        f"({row['ms_min']:.2f} to {row['ms_max']:.2f}), {row['steps']} steps, sends "
        f"{max(row['sent_mib']):.1f} MiB a step"
    )
