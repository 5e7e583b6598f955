"""What `fdg` is to reach beside what one would pick instead, and what a record says of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.pipeline import SCHEDULES
from benchmarks.report.markdown import lines_of


def goals(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """A line for each goal that these rows of speed can speak of; None without the limit.

    Every goal is a ratio that `fdg`, or a variant of it, is to reach: of samples per second, or
    of processor time, where less is better.
    """
    by_name = {row["row"]: row for row in rows}
    if not {"bp", "independent", "fdg"} <= set(by_name):
        return None
    pipelined = [row for row in rows if row["row"].split()[0] in SCHEDULES]
    variants = ("fdg", "fdg order=forward-first")
    lines = []
    for row in [by_name[name] for name in variants if name in by_name]:
        name = row["row"]
        lines.append(_line(f"{name} beside bp", row["ratio"], 1.9))
        if "of_limit" in row:
            lines.append(_line(f"{name} beside the limit", row["of_limit"], 0.97))
        if pipelined:
            best = max(pipelined, key=lambda peer: float(peer["ratio"]))
            what = f"{name} beside the best pipelining, {best['row']}"
            lines.append(_line(what, row["ratio"] / best["ratio"], 1.15))
        if "ddp" in by_name:
            what = f"{name} beside ddp"
            lines.append(_line(what, row["ratio"] / by_name["ddp"]["ratio"], 1.0))
        lines.append(_line(f"processor time of {name}", row["cpu_ratio"], 1.05, most=True))
    for row in rows:
        if row["row"] == "dgl" or row["row"].split()[0] == "adl":
            what = f"{row['row']} beside fdg"
            lines.append(_line(what, row["ratio"] / by_name["fdg"]["ratio"], 0.95))
    return lines_of(("goal", "wanted", "found", ""), lines)


def _line(what: str, found: float, bound: float, *, most: bool = False) -> tuple[str, ...]:
    met = found <= bound if most else found >= bound
    wanted = f"at {'most' if most else 'least'} {bound:.2f}"
    return what, wanted, f"{found:.2f}", "met" if met else "missed"
