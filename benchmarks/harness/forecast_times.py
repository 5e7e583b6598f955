"""Seconds of an update on more machines than there are, as the planner forecasts them."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness.link_times import parse_link
from benchmarks.harness.workload import Workload, torch_threads
from benchmarks.peers.row import Row
from benchmarks.peers.rows import BASE, accumulated, as_method, parse_method_row
from hocket.partition.costs.device import Device
from hocket_lab.planner.predict import predict_all
from hocket_lab.planner.rehearsals import Candidate


def forecast_updates(
    rows: Sequence[str],
    links: Sequence[str],
    cuts: tuple[str, ...],
    work: Callable[[str], Workload],
) -> list[dict[str, Any]]:
    """Forecast rows on as many machines as there are stages, each with all of its speed.

    Args:
        rows: Rows of Hocket.
        links: Links between the machines.
        cuts: Modules at which stages 1, 2, ... begin.
        work: Returns the work of a tick of a row.

    Returns:
        ``row``, ``link``, ``update_s`` and ``peak_mib`` of each row over each link. One
        machine, data parallelism, and a pipeline with its best number of micro-batches are
        among the rows, without their memory.
    """
    together: dict[int, list[str]] = {}
    for row in (BASE, *rows):
        together.setdefault(accumulated(row), []).append(row)
    found = []
    for ticks, names in together.items():  # what is rehearsed together has equal batches
        pairs = [(row, link) for row in names for link in links]
        candidates = [_as_candidate(row, link, cuts) for row, link in pairs]
        own = work(names[0])
        with torch_threads(own.threads):
            forecasts = predict_all(own.network_and_batch, candidates)
        for (row, link), one in zip(pairs, forecasts, strict=True):
            values: dict[str, Any] = {"row": row, "link": link, "peak_mib": []}
            if row != BASE:
                peak_mib = [stage.total for stage in one.memory]
                found.append(values | {"update_s": ticks * one.tick_s, "peak_mib": peak_mib})
                continue
            found.append(values | {"row": "ddp", "update_s": one.ddp_s})
            found.append(values | {"row": "gpipe", "update_s": one.pipeline_s})
            if len(cuts) == 1:  # one machine, once
                found.append(values | {"machines": 1, "update_s": one.bp_s})
    return found


def _as_candidate(row: str, link: str, cuts: tuple[str, ...]) -> Candidate:
    """Return the method of a row over a link, as the planner forecasts it."""
    parsed = Row.parse(row)
    own, known = parse_method_row(as_method(parsed) or parsed), parse_link(link)
    return Candidate(
        own.text,
        cuts,
        extra_delay=(own.extra_delay,) * len(cuts) if own.extra_delay else (),
        devices=(Device(link=known),) * (len(cuts) + 1) if known else (),
        codec=own.codec,
    )
