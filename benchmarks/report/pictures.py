"""Pictures of records, as SVG that is the same for the same record."""

import math
from itertools import cycle
from operator import itemgetter
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.record import Record
from benchmarks.report.goals import fastest_method
from benchmarks.report.target import name_link
from hocket_lab.report.line_chart import log_ticks

RATIOS = {
    "overhead": "time of a step, plain loop = 1; red: goal",
    "checkpoint": "time of a step, without checkpoints = 1",
    "speed": "samples per second, {base} = 1",
    "gpu": "time of a step, plain loop = 1",
    "gpu-graphs": "time of a step, plain loop = 1",
}
"""Meaning of the ratios of each measurement that has some."""


def draw_ratios(record: Record) -> Figure:
    """Draw a bar for each row with the range of its ratios, and a mark at its goal."""
    rows = [row for row in record.rows if not row.get("short_steps")]
    figure, axes = _new_figure(0.8 + 0.4 * len(rows))
    axes.axvline(1, color="0.3", linewidth=0.8)
    for place, row in enumerate(rows):
        ratio, goal = row["ratio"], row.get("goal")
        spread = [[ratio - row["ratio_min"]], [row["ratio_max"] - ratio]]
        colour = "tab:blue" if goal is None or ratio <= goal else "tab:orange"
        axes.barh(place, ratio, 0.4, color=colour, xerr=spread, ecolor="0.3", capsize=2)
        if goal is not None:
            axes.plot([goal] * 2, [place - 0.25, place + 0.25], color="tab:red")
        # The name is above the bar: at its left a phone has no room for both.
        name = ", ".join(filter(None, [row.get("network"), row["row"]]))
        axes.text(0, place - 0.27, f" {name}", va="bottom")
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.6, -0.8)
    axes.set_xlim(left=0)
    axes.set_xlabel(RATIOS[record.name].format(base=record.settings.get("base", "bp")))
    return figure


def draw_link(record: Record) -> Figure:
    """Draw the time of a sample over the rate of the link, a line for each row."""
    figure, axes = _new_figure(4.6)
    for number, label in enumerate(dict.fromkeys(row["row"] for row in record.rows)):
        rows = sorted(
            (row for row in record.rows if row["row"] == label), key=lambda row: row["mbit_s"]
        )
        below = [row["ms_per_sample"] - row["ms_min"] for row in rows]
        above = [row["ms_max"] - row["ms_per_sample"] for row in rows]
        alone = rows[0]["processes"] == 1
        axes.errorbar(
            [row["mbit_s"] for row in rows],
            [row["ms_per_sample"] for row in rows],
            yerr=[below, above],
            color="0.3" if alone else f"C{number}",
            linestyle=":" if alone else "-",
            marker=None if alone else "o",
            markersize=4,
            capsize=2,
            label=f"{label} (one node)" if alone else label,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    rates = record.settings["mbit_s"]
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    times = [row["ms_per_sample"] for row in record.rows]
    axes.set_yticks(log_ticks(min(times), max(times))[0])
    axes.set_xlabel("link, Mbit/s each way")
    axes.set_ylabel("ms for a sample")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, columnspacing=1)
    return figure


def draw_memory(record: Record) -> Figure:
    """Draw the memory of all stages over their number: measured lines, and predicted dots."""
    figure, axes = _new_figure(3.8)
    for number, label in enumerate(dict.fromkeys(row["row"] for row in record.rows)):
        rows = [row for row in record.rows if row["row"] == label]
        stages, colour = [row["stages"] for row in rows], f"C{number}"
        axes.plot(stages, [sum(row["measured"]) for row in rows], color=colour, label=label)
        axes.plot(stages, [sum(row["predicted"]) for row in rows], "o", color=colour)
    axes.set_xticks(record.settings["stages"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("stages of the same network")
    axes.set_ylabel("MiB in all stages; dots: predicted")
    figure.legend(loc="outside lower center", ncols=2, columnspacing=1)
    return figure


def draw_target(record: Record) -> Figure:
    """Draw seconds to the loss over machines: rings and lines are forecast, dots are timed.

    There is a panel for each link.
    """
    panels = {
        name_link(link): [row for row in record.rows if row["link"] == link]
        for link in record.settings["links"]
    }
    figure = Figure(figsize=(4 * len(panels), 5.5), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    every = [row for rows in panels.values() for row in rows if row["seconds"] is not None]
    # Of what is only timed, the best method over the last link, and replicas that meet rarely.
    timed = [r for r in panels[[*panels][-1]] if "forecast" not in r]
    best = (fastest_method(timed) or {"row": None})["row"]
    drawn = (r for r in every if "forecast" in r or r["row"] == best or "diloco" in r["row"])
    labels = list(dict.fromkeys(r["row"] for r in drawn))
    colours = matplotlib.color_sequences["tab10" if len(labels) <= 10 else "tab20"]
    for axes, (title, rows) in zip(all_axes, panels.items(), strict=True):
        for label, colour in zip(labels, cycle(colours), strict=False):
            axes.plot([], [], "o-", color=colour, label=label)
            for kind, style, face in ((True, "o--", "none"), (False, "o", colour)):
                of_row = [r for r in rows if r["row"] == label and ("forecast" in r) == kind]
                of_row.sort(key=itemgetter("machines"))
                machines = [r["machines"] for r in of_row]
                seconds = [math.nan if r["seconds"] is None else r["seconds"] for r in of_row]
                axes.plot(machines, seconds, style, color=colour, markerfacecolor=face)
        axes.set_xticks(sorted({row["machines"] for row in every}))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_title(title)
        axes.set_xlabel("machines (dots: timed; rings: forecast)")
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("seconds to the loss")
    handles, shown = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, shown, loc="outside lower center", ncols=2, fontsize="small")
    return figure


def save_svg(figure: Figure, path: Path) -> Path:
    """Write the picture, with the same bytes for the same figure."""
    with matplotlib.rc_context({"svg.hashsalt": "hocket"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def _new_figure(height: float) -> tuple[Figure, Axes]:
    """Return an empty figure as wide as a phone, of a height in inches, and its axes."""
    figure = Figure(figsize=(4, height), layout="constrained")
    return figure, figure.add_subplot()
