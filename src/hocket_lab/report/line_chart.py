"""Line chart as SVG: means over seeds with their spread, readable at 360 pixels."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import pairwise
from urllib.parse import quote

from hocket_lab.report.groups import Line, average, common_points
from hocket_lab.report.markup import Child, Markup, element
from hocket_lab.report.reported_run import Series

WIDTH, HEIGHT = 380, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 36
"""Margins around the plot, which hold the labels of its axes."""
COLOURS, DASHES = 8, (None, "6 3", "2 3", "8 3 2 3")
"""Number of colours, and dashes of the groups that use the colours again."""
TICKS = 5
"""Number of ticks that a linear axis is to have, about."""


@dataclass(frozen=True)
class Curve:
    """Curves of the runs of one group.

    Attributes:
        number: Number of the group.
        label: Label of the group.
        runs: A line for each run.
        mean: The thick line, which the runs are points around; None for the mean of the runs.
    """

    number: int
    label: str
    runs: Sequence[Line]
    mean: Line | None = None


@dataclass(frozen=True)
class Scale:
    """Scale of an axis.

    Attributes:
        least: Value at its start.
        greatest: Value at its end.
        start: Coordinate of its start.
        end: Coordinate of its end.
        log: True for a logarithmic scale, of positive values; False for a linear one.
    """

    least: float
    greatest: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        least, greatest, value = (
            math.log10(each) if self.log else each
            for each in (self.least, self.greatest, value)
        )
        return self.start + (value - least) / (greatest - least) * (self.end - self.start)

    def __str__(self) -> str:
        """Return the scale as the script of the page reads it."""
        return f"{self.least} {self.greatest} {self.start} {self.end}{' log' * self.log}"


def line_chart(
    title: str,
    x_label: str,
    curves: Sequence[Curve],
    *,
    markers: bool = False,
    whole: bool = False,
    log: str = "y",
    note: Child = None,
) -> Markup | None:
    """Draw curves against common axes; None if they have no points.

    A group of several runs has a thin line for each, a thick line for their mean where all of
    them have points, and an area from their least to their greatest value.

    Args:
        title: Text above the chart: the quantity, with its unit.
        x_label: Text below the horizontal axis.
        curves: Curves of the groups.
        markers: Mark each point, as there are few.
        whole: Label whole numbers only, as x counts something small.
        log: Axes that are logarithmic if all values are positive: y only if they span more
            than a factor of 10.
        note: Content of the caption after the title.
    """
    # Leave out values that are not finite, and lines without any.
    shown = [replace(c, runs=[line for line in map(_finite, c.runs) if line]) for c in curves]
    shown = [curve for curve in shown if curve.runs]
    lines = [line for curve in shown for line in (*curve.runs, curve.mean or {})]
    points = [point for line in lines for point in line.values()]
    if not points:
        return None
    # Scale the axes.
    (least, greatest), (low, high) = ((min(v), max(v)) for v in zip(*points, strict=True))
    log_x, log_y = "x" in log and least > 0, "y" in log and high > 10 * low > 0
    ticks_of_x = log_ticks if log_x and greatest > 10 * least else axis_ticks
    x_ticks, x_range = ticks_of_x(least, greatest, tight=True)
    y_ticks, y_range = (log_ticks if log_y else axis_ticks)(low, high)
    if whole:
        x_ticks = [tick for tick in x_ticks if tick == int(tick)]
    x = Scale(*x_range, LEFT, WIDTH - RIGHT, log_x)
    y = Scale(*y_range, HEIGHT - BOTTOM, TOP, log_y)
    x_text, y_text = _formatter(x_ticks, log=log_x), _formatter(y_ticks, log=log_y)
    # Draw, and offer the values as a table.
    picture = element(
        "svg",
        element("title", f"{title} by {x_label}"),
        [_y_tick(y(tick), y_text(tick)) for tick in y_ticks],
        [_x_tick(x(tick), x_text(tick)) for tick in x_ticks],
        element("text", x_label, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 4, class_="name"),
        [_draw_group(curve, x, y, markers=markers) for curve in shown],
        element("line", class_="cursor", y1=TOP, y2=HEIGHT - BOTTOM),
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        data_x=str(x),
        data_y=str(y),
        data_name=x_label,
    )
    table = element("a", "CSV", href=_csv(x_label, title, shown), download=f"{title}.csv")
    caption = element(
        "figcaption", element("b", title), " ", table, " ", note, element("output")
    )
    return element("figure", caption, picture)


def _csv(x_label: str, title: str, curves: Sequence[Curve]) -> str:
    """Return the address of a table with a row for each point of each run of the curves."""
    text = StringIO()
    table = csv.writer(text)
    table.writerow(["settings", "run", x_label, title])
    for curve in curves:
        for number, run in enumerate(curve.runs):
            table.writerows(
                [curve.label, number, f"{x:.9g}", f"{y:.6g}"] for x, y in run.values()
            )
    return f"data:text/csv,{quote(text.getvalue())}"


def line_sample(number: int) -> Markup:
    """Draw a piece of the line of a group, for legends and tables."""
    line = element("line", x1=0, x2=20, y1=6, y2=6, stroke_dasharray=_dashes(number))
    return element(
        "svg", line, class_=f"sample {_colour(number)}", viewBox="0 0 20 12", aria_hidden="true"
    )


def _colour(number: int) -> str:
    """Return the class that gives the elements of a group their colour."""
    return f"colour{number % COLOURS}"


def _dashes(number: int) -> str | None:
    """Return the dashes of a group's line; None for a solid one."""
    return DASHES[number // COLOURS % len(DASHES)]


def axis_ticks(
    least: float, greatest: float, *, tight: bool = False
) -> tuple[list[float], tuple[float, float]]:
    """Return round numbers for the ticks of an axis, and its range.

    Args:
        least: Least value to show.
        greatest: Greatest value to show.
        tight: End the axis at the values; else at the ticks around them.

    >>> axis_ticks(0.03, 0.21)
    ([0.0, 0.05, 0.1, 0.15, 0.2, 0.25], (0.0, 0.25))
    >>> axis_ticks(0.0, 8e-13)
    ([0.0, 2e-13, 4e-13, 6e-13, 8e-13], (0.0, 8e-13))
    """
    if greatest - least <= 1e-12 * max(abs(least), abs(greatest), 1e-300):
        margin = abs(least) / 10 or 1.0
        least, greatest = least - margin, greatest + margin
    rough = (greatest - least) / TICKS
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    step = next(m * power for m in (1, 2, 2.5, 5, 10, 20) if m * power >= rough * 0.999)
    first, last = math.floor(least / step + 1e-9), math.ceil(greatest / step - 1e-9)
    ticks = [round(n * step, 12 + max(0, -exponent)) for n in range(first, last + 1)]
    if tight:
        return [t for t in ticks if least <= t <= greatest], (least, greatest)
    return ticks, (ticks[0], ticks[-1])


def log_ticks(
    least: float, greatest: float, *, tight: bool = False
) -> tuple[list[float], tuple[float, float]]:
    """Return ticks of a logarithmic axis, and its range.

    Args:
        least: Least value to show.
        greatest: Greatest value to show, more than 10 times as large.
        tight: End the axis at the values; else at the ticks around them.

    >>> log_ticks(0.03, 1.5)
    ([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0], (0.02, 2.0))
    >>> log_ticks(3.0, 4000.0, tight=True)
    ([10.0, 100.0, 1000.0], (3.0, 4000.0))
    """
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(greatest))
    factors = (1, 2, 5) if greatest <= 100 * least else (1,)
    step = (last - first) // 8 + 1
    powers = range(first, last + step, step)
    ticks = [float(f"{factor}e{power}") for power in powers for factor in factors]
    start, end = least, greatest
    if not tight:
        start = max((tick for tick in ticks if tick <= least), default=least)
        end = min((tick for tick in ticks if greatest <= tick < math.inf), default=greatest)
    return [tick for tick in ticks if start <= tick <= end], (start, end)


def _finite(run: Line) -> Line:
    return {at: (x, y) for at, (x, y) in run.items() if math.isfinite(x) and math.isfinite(y)}


def _draw_group(curve: Curve, x: Scale, y: Scale, *, markers: bool) -> Markup:
    """Draw the spread, the runs and the mean of a group."""
    mean = average(curve.runs if curve.mean is None else [curve.mean])
    several = len(curve.runs) > 1 and curve.mean is None
    runs = [[(x(a), y(b)) for a, b in run.values()] for run in curve.runs if several]
    parts = [_polyline(run, "run") for run in runs]
    # At seconds that differ there is no least and greatest value; the runs themselves show it.
    if several and len(mean) > 1 and _share_x(curve.runs):
        low = [(x(a), y(b)) for a, _, b, _ in mean]
        high = [(x(a), y(b)) for a, _, _, b in reversed(mean)]
        parts.insert(0, element("polygon", points=_points([*low, *high]), class_="spread"))
    line = [(x(a), y(b)) for a, b, _, _ in mean]
    parts.append(_polyline(line, "mean", _dashes(curve.number)))
    if curve.mean is not None:
        seeds = [point for run in curve.runs for point in run.values()]
        parts += [element("circle", cx=x(a), cy=y(b), r=3, class_="run") for a, b in seeds]
    if markers or len(line) == 1:
        parts += [element("circle", cx=a, cy=b, r=3) for a, b in line]
    return element(
        "g",
        parts,
        class_=_colour(curve.number),
        data_group=curve.number,
        data_label=curve.label,
    )


def _share_x(runs: Sequence[Line]) -> bool:
    """Return True if the points that are alike have the same x in all runs."""
    return all(len({x for x, _ in points}) == 1 for points in common_points(runs))


def _polyline(points: Series, class_: str, dashes: str | None = None) -> Markup:
    return element("polyline", points=_points(points), class_=class_, stroke_dasharray=dashes)


def _points(points: Series) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _y_tick(place: float, text: str) -> list[Markup]:
    line = element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, class_="grid")
    return [line, element("text", text, x=LEFT - 6, y=place + 4, class_="tick left")]


def _x_tick(place: float, text: str) -> Markup:
    return element("text", text, x=place, y=HEIGHT - 20, class_="tick")


def _formatter(ticks: Sequence[float], *, log: bool) -> Callable[[float], str]:
    """Return the function that writes the ticks of an axis, with equal decimals if linear."""
    if log:
        return "{:g}".format
    if max(map(abs, ticks), default=0) >= 10000:
        return lambda value: f"{value / 1000:g}k"
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    decimals = next((n for n in range(8) if abs(round(step, n) - step) < step / 1000), 8)
    return lambda value: f"{value:.{decimals}f}"
