"""Seconds of an update of rows over a link, timed in turns."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.harness.nodes import Node
from benchmarks.harness.relay import relayed_nodes
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.link import LinkTiming, TimedFlow
from benchmarks.peers import Baseline
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.local_updates import LocalUpdates
from hocket.errors import OptionError
from hocket.partition.costs.link import Link

NO_LIMIT = "none"
"""Name of the loopback interface in place of a link."""
NODES = 2


@dataclass(frozen=True)
class TimedRow:
    """A row to be timed.

    Attributes:
        row: Its name and options.
        baseline: Its way to train.
        work: Network, and the batch of a tick.
    """

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
        return self.baseline.steps if isinstance(self.baseline, LocalUpdates) else self.ticks


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
def joined_nodes(link: Link | None) -> Iterator[Sequence[Node]]:
    """Context manager of two nodes over a link; none, and so loopback, without a limit.

    Raises:
        NodesError: This machine cannot provide such nodes.
    """
    if link is None:
        yield ()
        return
    with relayed_nodes(NODES) as (nodes, relay):
        relay.latency_s, relay.bytes_per_s = link.latency_s, link.bytes_per_s
        yield nodes


def time_over_link(
    name: str, rows: Sequence[TimedRow], *, repetitions: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Return seconds of an update of each row, in rounds in which every row has one turn.

    Args:
        name: The link.
        rows: The rows.
        repetitions: Number of rounds.
        seconds: Length of a turn, which has a whole number of periods of its row.

    Returns:
        By row ``update_s`` (median over rounds), ``min_s`` and ``max_s``.

    Raises:
        NodesError: This machine cannot provide two nodes.
        HocketError: A process failed.
    """
    with joined_nodes(parse_link(name)) as nodes, ExitStack() as stack:
        worlds = {
            one.row: stack.enter_context(
                RowProcesses(
                    one.row, one.baseline, one.work, nodes=nodes[: one.baseline.processes]
                )
            )
            for one in rows
        }
        queries = {
            one.row: _query(one, _run(worlds[one.row], TimedFlow(0, one.period)), seconds)
            for one in rows
        }
        times_s: dict[str, list[float]] = {one.row: [] for one in rows}
        for _ in range(repetitions):
            for one in rows:
                query = queries[one.row]
                step_s = _run(worlds[one.row], query) / query.number
                times_s[one.row].append(step_s * one.ticks)
    for row, times in times_s.items():
        print(f"{name}, {row}: {median(times):.3f} s an update", file=sys.stderr, flush=True)
    return {row: _summarize(times) for row, times in times_s.items()}


def _query(one: TimedRow, period_s: float, seconds: float) -> TimedFlow:
    """Return steps for a turn of this length, which go on from others that are not timed."""
    periods = max(1, round(seconds / period_s))
    # A whole period of replicas may be as long as a turn.
    untimed = 0 if isinstance(one.baseline, LocalUpdates) else max(1, periods // 4)
    return TimedFlow(untimed * one.period, periods * one.period)


def _run(world: RowProcesses, query: TimedFlow) -> float:
    """Return the seconds of the timed steps, of the process that takes longest."""
    timings: list[LinkTiming] = world.query(query)
    return max(timing.wall_s for timing in timings)


def _summarize(times_s: Sequence[float]) -> dict[str, float]:
    return {"update_s": median(times_s), "min_s": min(times_s), "max_s": max(times_s)}
