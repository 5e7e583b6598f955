"""Line chart as SVG: means over seeds with their spread, readable at 360 pixels."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from urllib.parse import quote

from hocket.runs.report.groups import Line, average, common_points
from hocket.runs.report.markup import Markup, element
from hocket.runs.report.reported_run import Series

WIDTH, HEIGHT = 380, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 36
"""Margins around the plot, which hold the labels of its axes."""
COLOURS, DASHES = 8, (None, "6 3", "2 3", "8 3 2 3")
"""Number of colours, and dashes of the groups that use the colours again."""


@dataclass(frozen=True)
class Curve:
    """Curves of the runs of one group.

    Attributes:
        number: Number of the group.
        label: Label of the group.
        runs: A line for each run.
    """

    number: int
    label: str
    runs: Sequence[Line]


@dataclass(frozen=True)
class Scale:
    """Linear scale of an axis.

    Attributes:
        least: Value at its start.
        greatest: Value at its end.
        start: Coordinate of its start.
        end: Coordinate of its end.
    """

    least: float
    greatest: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        share = (value - self.least) / (self.greatest - self.least)
        return self.start + share * (self.end - self.start)


def line_chart(
    title: str,
    x_label: str,
    curves: Sequence[Curve],
    *,
    markers: bool = False,
    whole: bool = False,
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
    """
    shown = [
        Curve(c.number, c.label, [line for line in map(_finite, c.runs) if line])
        for c in curves
    ]
    shown = [curve for curve in shown if curve.runs]
    points = [point for curve in shown for run in curve.runs for point in run.values()]
    if not points:
        return None
    x_ticks, x_range = axis_ticks(
        min(x for x, _ in points), max(x for x, _ in points), tight=True
    )
    y_ticks, y_range = axis_ticks(min(y for _, y in points), max(y for _, y in points))
    if whole:
        x_ticks = [tick for tick in x_ticks if tick == int(tick)]
    x = Scale(*x_range, LEFT, WIDTH - RIGHT)
    y = Scale(*y_range, HEIGHT - BOTTOM, TOP)
    picture = element(
        "svg",
        element("title", f"{title} by {x_label}"),
        [_y_tick(y(tick), tick, y_ticks) for tick in y_ticks],
        [_x_tick(x(tick), tick, x_ticks) for tick in x_ticks],
        element("text", x_label, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 4, class_="name"),
        [_draw_group(curve, x, y, markers=markers) for curve in shown],
        element("line", class_="cursor", y1=TOP, y2=HEIGHT - BOTTOM),
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        data_x=f"{x.least} {x.greatest} {LEFT} {WIDTH - RIGHT}",
        data_y=f"{y.least} {y.greatest} {HEIGHT - BOTTOM} {TOP}",
        data_name=x_label,
    )
    table = element("a", "CSV", href=_csv(x_label, title, shown), download=f"{title}.csv")
    caption = element("figcaption", element("b", title), " ", table, element("output"))
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
    least: float, greatest: float, *, tight: bool = False, count: int = 5
) -> tuple[list[float], tuple[float, float]]:
    """Return round numbers for the ticks of an axis, and its range.

    Args:
        least: Least value to show.
        greatest: Greatest value to show.
        tight: End the axis at the values; else at the ticks around them.
        count: Number of ticks to aim at.

    >>> axis_ticks(0.03, 0.21)
    ([0.0, 0.05, 0.1, 0.15, 0.2, 0.25], (0.0, 0.25))
    >>> axis_ticks(0.0, 4e-13, count=2)
    ([0.0, 2e-13, 4e-13], (0.0, 4e-13))
    """
    if greatest - least <= 1e-12 * max(abs(least), abs(greatest), 1e-300):
        margin = abs(least) / 10 or 1.0
        least, greatest = least - margin, greatest + margin
    rough = (greatest - least) / count
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    step = next(m * power for m in (1, 2, 2.5, 5, 10, 20) if m * power >= rough * 0.999)
    first, last = math.floor(least / step + 1e-9), math.ceil(greatest / step - 1e-9)
    ticks = [round(n * step, 12 + max(0, -exponent)) for n in range(first, last + 1)]
    if tight:
        return [t for t in ticks if least <= t <= greatest], (least, greatest)
    return ticks, (ticks[0], ticks[-1])


def _finite(run: Line) -> Line:
    return {at: (x, y) for at, (x, y) in run.items() if math.isfinite(x) and math.isfinite(y)}


def _draw_group(curve: Curve, x: Scale, y: Scale, *, markers: bool) -> Markup:
    """Draw the spread, the runs and the mean of a group."""
    mean = average(curve.runs)
    several = len(curve.runs) > 1
    runs = [[(x(a), y(b)) for a, b in run.values()] for run in curve.runs if several]
    parts = [_polyline(run, "run") for run in runs]
    # At seconds that differ there is no least and greatest value; the runs themselves show it.
    if several and len(mean) > 1 and _share_x(curve.runs):
        low = [(x(a), y(b)) for a, _, b, _ in mean]
        high = [(x(a), y(b)) for a, _, _, b in reversed(mean)]
        parts.insert(0, element("polygon", points=_points([*low, *high]), class_="spread"))
    line = [(x(a), y(b)) for a, b, _, _ in mean]
    parts.append(_polyline(line, "mean", _dashes(curve.number)))
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


def _y_tick(place: float, value: float, ticks: Sequence[float]) -> list[Markup]:
    line = element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, class_="grid")
    text = _formatter(ticks)(value)
    return [line, element("text", text, x=LEFT - 6, y=place + 4, class_="tick left")]


def _x_tick(place: float, value: float, ticks: Sequence[float]) -> Markup:
    return element("text", _formatter(ticks)(value), x=place, y=HEIGHT - 20, class_="tick")


def _formatter(ticks: Sequence[float]) -> Callable[[float], str]:
    """Return the function that writes the ticks of an axis, all with as many decimals."""
    if max(map(abs, ticks), default=0) >= 10000:
        return lambda value: f"{value / 1000:g}k"
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    decimals = next((n for n in range(8) if abs(round(step, n) - step) < step / 1000), 8)
    return lambda value: f"{value:.{decimals}f}"
