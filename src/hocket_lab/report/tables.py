"""Tables of a report: numbers for reading and for sorting, and bars of fractions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hocket_lab.report.groups import UNKNOWN, Group
from hocket_lab.report.line_chart import line_sample
from hocket_lab.report.markup import Markup, element
from hocket_lab.studies.record import mean_and_deviation


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Attributes:
        content: Text or markup to show.
        value: Number or text to sort by; None for a value that is not known.
    """

    content: str
    value: float | str | None = None


Row: TypeAlias = Sequence[Cell | str]


def sortable_table(columns: Sequence[str], rows: Sequence[Row]) -> Markup:
    """Build a table that the script of the page sorts by the column whose head is pressed."""
    heads = [
        element("th", element("button", name, type="button"), scope="col") for name in columns
    ]
    body = [
        element("tr", [_cell(cell, first=not n) for n, cell in enumerate(row)]) for row in rows
    ]
    table = element(
        "table",
        element("thead", element("tr", heads)),
        element("tbody", body),
        class_="sortable",
    )
    return element("div", table, class_="scroll", tabindex=0)


def number(value: float | None, digits: int = 4) -> Cell:
    """Return the cell of a number with some significant digits; a dash if it is not known.

    Whole numbers stay as they are.

    >>> [number(value).content for value in (12345.678, 0.00012345, 3.0)]
    ['12,346', '0.0001234', '3']
    """
    if value is None or not math.isfinite(value):
        return Cell(UNKNOWN)
    is_long = abs(value) >= 10 ** (digits - 1)
    return Cell(f"{value:,.0f}" if is_long else f"{value:.{digits}g}", value)


def spread(values: Sequence[float | None], factor: float = 1.0) -> Cell:
    """Return the cell of the mean of values, with their standard deviation, times a factor.

    Unless all values are known, it is a dash.
    """
    found = mean_and_deviation([None if v is None else v * factor for v in values])
    if found is None:
        return Cell(UNKNOWN)
    mean, deviation = found
    if not deviation:
        return number(mean)
    # Two digits of the deviation, but no more than four of the mean.
    decimals = min(1 - _magnitude(deviation), 3 - _magnitude(mean))
    shown = f"{mean:,.{max(decimals, 0)}f} ± {deviation:,.{max(decimals, 0)}f}"
    return Cell(shown, mean)


def group_cell(group: Group) -> Cell:
    """Return the cell that names a group, behind a sample of its line."""
    sample = line_sample(group.number)
    return Cell(element("span", sample, group.label), str(group.number))  # in their order


def fraction_bar(parts: Sequence[tuple[str, float]]) -> Markup:
    """Draw fractions of 1 as a bar; the class of each part gives the colour."""
    start, boxes = 0.0, []
    for class_, part in parts:
        end = min(start + max(part, 0.0) * 100, 100.0)
        boxes.append(element("rect", x=start, width=end - start, height=10, class_=class_))
        start = end
    return element(
        "svg", boxes, class_="bar", viewBox="0 0 100 10", preserveAspectRatio="none",
        aria_hidden="true",
    )  # fmt: skip


def _magnitude(value: float) -> int:
    """Return the exponent of a number's first digit.

    >>> _magnitude(0.05), _magnitude(286.3)
    (-2, 2)
    """
    return math.floor(math.log10(abs(value))) if value else 0


def _cell(cell: Cell | str, *, first: bool) -> Markup:
    tag = "th" if first else "td"
    scope = "row" if first else None
    if isinstance(cell, str):
        return element(tag, cell, scope=scope, data_value=cell)
    class_ = "number" if not isinstance(cell.value, str) and not first else None
    value = "" if cell.value is None else str(cell.value)
    return element(tag, cell.content, scope=scope, class_=class_, data_value=value)
