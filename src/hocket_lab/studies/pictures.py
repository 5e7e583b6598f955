"""Picture of a study: its metric against updates, samples and seconds, a curve for each row."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hocket.errors import import_extra
from hocket_lab.studies.selection import is_chosen
from hocket_lab.studies.target import Target

AXES: Mapping[str, str] = {
    "updates": "updates",
    "samples": "samples",
    "seconds": "seconds of training",
}
"""Labels of the axes, by the key of a point."""


def draw_curves(values: Mapping[str, Any], file: Path) -> None:
    """Write the curves of a record as SVG; each is the mean of a row's runs at its best rate.

    The area around it is between the least and the greatest value over the seeds.

    Raises:
        OptionError: matplotlib is not installed.
    """
    matplotlib = import_extra("matplotlib", "plot", "a picture")
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Begin a figure with a panel for each axis.
    settings = values["settings"]
    metric, goal = settings["select"], settings["target"]
    target = None if goal is None else Target.parse(goal)
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(1, len(AXES), sharey=True)
    # Draw a line for each row, and the target.
    for panel, (key, title) in zip(panels, AXES.items(), strict=True):
        for number, row in enumerate(values["rows"]):
            curves = [[p for p in c if p[metric] is not None] for c in chosen_curves(row)]
            if not any(curves):
                continue
            points = list(zip(*curves, strict=False))  # to the end of the shortest
            x = [fmean(p[key] for p in each) for each in points]
            y = [[p[metric] for p in each] for each in points]
            colour = f"C{number % 10}"
            style = ("-", "--", ":", "-.")[number // 10 % 4]
            label = row["row"].replace("$", r"\$")  # between two of them stands a formula
            panel.plot(x, [fmean(v) for v in y], style, color=colour, label=label)
            panel.fill_between(
                x, [min(v) for v in y], [max(v) for v in y], color=colour, alpha=0.2, lw=0
            )
        if target is not None and target.metric == metric:
            panel.axhline(target.limit, color="black", lw=0.8, ls="--")
        panel.set_xlabel(title)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel(metric)
    if panels[0].get_legend_handles_labels()[0]:
        panels[-1].legend(loc="upper right", fontsize="small")
    # Without a date and with fixed names of elements, equal records give equal files.
    with matplotlib.rc_context({"svg.hashsalt": "hocket"}):
        figure.savefig(file, format="svg", metadata={"Date": None})


def chosen_curves(row: Mapping[str, Any]) -> list[Sequence[Mapping[str, Any]]]:
    """Return the curves of a row at its best learning rate; none if a run diverged."""
    if row["state"] == "diverged":
        return []
    return [
        run["curve"]
        for run in row["runs"]
        if run["state"] == "finished" and is_chosen(row, run)
    ]
