"""Goals for the speed of `fdg` compared with its alternatives, and how records meet them."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.pipeline import SCHEDULES
from benchmarks.report.markdown import markdown_table


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


def _goal_line(goal: str, value: float, bound: float, *, most: bool = False) -> tuple[str, ...]:
    met = value <= bound if most else value >= bound
    wanted = f"at {'most' if most else 'least'} {bound:.2f}"
    return goal, wanted, f"{value:.2f}", "met" if met else "missed"
