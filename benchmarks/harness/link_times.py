"""Seconds of a step or an update of rows over a link, timed in turns."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

from benchmarks.harness.nodes import Node
from benchmarks.harness.relay import relayed_nodes
from benchmarks.harness.repetition import Repetition, TimedSteps, run_repetition
from benchmarks.harness.rounds import run_rounds
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import Baseline
from benchmarks.peers.decoupled import Decoupled
from hocket.errors import OptionError
from hocket.partition.costs.link import Link

NO_LIMIT = "none"
"""Name of the loopback interface in place of a link."""
NODES = 2


@dataclass(frozen=True)
class TimedRow:
    """A row to be timed, whose work has the batch of a tick."""

    row: str
    baseline: Baseline
    work: Workload

    @property
    def ticks(self) -> int:
        """Number of steps of an update."""
        return self.baseline.method.accumulate if isinstance(self.baseline, Decoupled) else 1

    @property
    def period(self) -> int:
        """Number of steps after which the same steps follow again."""
        return self.baseline.period if isinstance(self.baseline, Decoupled) else 1

    def turn(self, seconds: float, period_s: float) -> TimedSteps:
        """Return the steps of a turn: whole periods, after some that are not timed."""
        periods = max(1, round(seconds / period_s))
        # A whole period of replicas may be as long as a turn.
        untimed = 0 if self.period > self.ticks else max(1, periods // 4)
        return TimedSteps(periods * self.period, untimed * self.period)


def parse_link(name: str) -> Link | None:
    """Return the link of this name; None for no limit.

    Raises:
        OptionError: It is no link.
    """
    return None if name == NO_LIMIT else Link.parse(name)


def link_problems(names: Sequence[str]) -> list[str]:
    """Return a line for each name that is no link."""
    problems = []
    for name in names:
        try:
            parse_link(name)
        except OptionError as error:
            problems.append(str(error))
    return problems


@contextmanager
def started_rows(
    rows: Sequence[TimedRow], nodes: Sequence[Node] = ()
) -> Iterator[dict[str, RowProcesses]]:
    """Context manager of the processes of rows, by the names of the rows.

    Without nodes they run on this machine.

    Raises:
        HocketError: A process failed.
    """
    with ExitStack() as stack:
        yield {
            one.row: stack.enter_context(
                RowProcesses(
                    one.row, one.baseline, one.work, nodes=nodes[: one.baseline.processes]
                )
            )
            for one in rows
        }


def time_in_rounds(
    rows: Sequence[TimedRow],
    worlds: Mapping[str, RowProcesses],
    *,
    repetitions: int,
    seconds: float,
) -> dict[str, list[Repetition]]:
    """Return the repetitions of each row, in rounds in which every row has one turn.

    Raises:
        HocketError: A process failed.
    """
    turns = []
    for one in rows:
        first = run_repetition(worlds[one.row], TimedSteps(one.period, before=0))
        steps = one.turn(seconds, first.wall_s)
        turns.append(partial(run_repetition, worlds[one.row], steps))
    names = (one.row for one in rows)
    return dict(zip(names, run_rounds(turns, repetitions), strict=True))


def time_over_link(
    name: str, rows: Sequence[TimedRow], *, repetitions: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Return seconds of an update of each row, in rounds in which every row has one turn.

    Returns:
        By row ``update_s`` (median over rounds), ``min_s`` and ``max_s``; for each process
        ``peak_mib``, without PyTorch itself; and ``sent_mib`` in an update, the busier one's.

    Raises:
        NodesError: This machine cannot provide two nodes.
        HocketError: A process failed.
    """
    link = parse_link(name)
    pair = nullcontext(()) if link is None else relayed_nodes(link)  # none: over loopback
    with pair as nodes, started_rows(rows, nodes) as worlds:
        timed = time_in_rounds(rows, worlds, repetitions=repetitions, seconds=seconds)
        peaks_mib = {row: world.peak_mib() for row, world in worlds.items()}
    found: dict[str, dict[str, Any]] = {}
    for one in rows:
        times_s = [turn.step_s * one.ticks for turn in timed[one.row]]
        update_s = median(times_s)
        sent = [max(turn.sent_bytes) * one.ticks / turn.steps for turn in timed[one.row]]
        found[one.row] = {
            "update_s": update_s,
            "min_s": min(times_s),
            "max_s": max(times_s),
            "peak_mib": peaks_mib[one.row],
            "sent_mib": fmean(sent) / 2**20 if nodes else None,  # over loopback not counted
        }
        print(f"{name}, {one.row}: {update_s:.3f} s an update", file=sys.stderr, flush=True)
    return found
