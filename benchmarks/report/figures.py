"""Parts of pictures: figures, axes and lines, as SVG that is the same for the same record."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DASHES = ("-", "--", ":", "-.")
"""Dashes that tell coinciding lines apart."""


def new_figure(width: float = 6, height: float = 4.2) -> tuple[Figure, Axes]:
    """Return an empty figure, whose sides are in inches, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def line_style(number: int) -> dict[str, Any]:
    """Return colour and dash of a line."""
    return {"color": f"C{number}", "linestyle": DASHES[number % len(DASHES)]}


def label_axes(axes: Axes, across: str, up: str) -> None:
    """Add labels to both axes, a grid and a legend."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def label_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label positions 0, 1, ... of the vertical axis, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def save_svg(figure: Figure, path: Path) -> Path:
    """Write the picture, with the same bytes for the same figure."""
    with matplotlib.rc_context({"svg.hashsalt": "hocket"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path
