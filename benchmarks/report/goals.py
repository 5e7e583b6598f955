"""Goals for `fdg`, and for methods over a link, compared with their alternatives."""

from collections.abc import Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Any

from benchmarks.peers.pipeline import SCHEDULES
from benchmarks.peers.rows import SCHEDULED
from benchmarks.report.markdown import NONE, markdown_table


def goals_table(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a table of the goals that apply to rows of speed; None without the base or limit.

    Every goal is a ratio that `fdg`, or a variant of it, should reach: of samples per second or
    of processor time, for which less is better.
    """
    by_name = {row["row"]: row for row in rows}
    if not {"bp", "independent", "fdg"} <= set(by_name):
        return None
    pipelined = [row for row in rows if row["row"].split()[0] in SCHEDULES]
    variants = ("fdg", "fdg order=forward-first")
    lines = []
    for row in [by_name[name] for name in variants if name in by_name]:
        name = row["row"]
        lines.append(_goal_line(f"{name} compared with bp", row["ratio"], 1.9))
        if "of_limit" in row:
            lines.append(_goal_line(f"{name} compared with the limit", row["of_limit"], 0.97))
        if pipelined:
            best = max(pipelined, key=lambda peer: float(peer["ratio"]))
            goal = f"{name} compared with the best pipeline here, {best['row']}"
            lines.append(_goal_line(goal, row["ratio"] / best["ratio"], 1.15))
        if "ddp" in by_name:
            goal = f"{name} compared with ddp"
            lines.append(_goal_line(goal, row["ratio"] / by_name["ddp"]["ratio"], 1.0))
        lines.append(_goal_line(f"processor time of {name}", row["cpu_ratio"], 1.05, most=True))
    for row in rows:
        if row["row"] == "dgl" or row["row"].split()[0] == "adl":
            goal = f"{row['row']} compared with fdg"
            lines.append(_goal_line(goal, row["ratio"] / by_name["fdg"]["ratio"], 0.95))
    return markdown_table(("goal", "wanted", "found", ""), lines)


def fastest_method(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the decoupled row that comes first to the loss; None if none comes there."""
    there = [row for row in rows if row["decoupled"] and row["seconds"] is not None]
    return min(there, key=itemgetter("seconds"), default=None)


def target_goals(
    rows: Sequence[Mapping[str, Any]], forecast: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return a table of the goals of the decoupled row that comes first to a loss over a link.

    Args:
        rows: The rows over the link, with the seconds of those that came there.
        forecast: Rows that are forecast over it, of which those on most machines are judged.
    """
    if (best := fastest_method(rows)) is None:
        return "No decoupled row comes to the loss over the last link: all goals are missed."
    first = sorted(rows, key=lambda row: inf if row["seconds"] is None else row["seconds"])
    kinds = (
        ("one machine", ("bp",), 0.58),
        ("the best pipeline that waits", (*SCHEDULES, *SCHEDULED), 0.85),
        ("DiLoCo", ("diloco",), 1.0),
    )
    lines: list[tuple[str, ...]] = []
    for kind, names, bound in kinds:
        others = (row for row in first if row["row"].split()[0] in names)
        if (other := next(others, None)) is None:
            continue
        goal = f"seconds of {best['row']} compared with {kind}, {other['row']}"
        if other["seconds"] is None:
            told = f"{goal}, which does not come to the loss"
            lines.append((told, f"at most {bound:.2f}", NONE, "not judged"))
        else:
            ratio = best["seconds"] / other["seconds"]
            lines.append(_goal_line(goal, ratio, bound, most=True))
        if kind == "DiLoCo":
            ratio = max(best["peak_mib"]) / max(other["peak_mib"])
            lines.append(_goal_line("its memory compared with that", ratio, 0.6, most=True))
        if kind == "one machine" and other["final_loss"] is not None:
            above = 100 * (best["final_loss"] - other["final_loss"])
            lines.append(_goal_line("its loss above that, hundredths", above, 1, most=True))

    # Judge the forecast for most machines.
    most = max((row["machines"] for row in forecast), default=0)
    there = [row for row in forecast if row["machines"] == most and row["seconds"] is not None]
    pipeline = next((row for row in there if row["row"] == "gpipe"), None)
    if (best := fastest_method(there)) is not None and pipeline is not None:
        goal = f"forecast seconds of {best['row']} on {most} machines compared with a pipeline"
        ratio = best["seconds"] / pipeline["seconds"]
        lines.append(_goal_line(goal, ratio, 0.6, most=True))
    return markdown_table(("goal over the last link", "wanted", "found", ""), lines)


def _goal_line(goal: str, value: float, bound: float, *, most: bool = False) -> tuple[str, ...]:
    met = value <= bound if most else value >= bound
    wanted = f"at {'most' if most else 'least'} {bound:.2f}"
    return goal, wanted, f"{value:.3f}", "met" if met else "missed"
