"""Tables in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from string import Formatter
from typing import Any

NONE = "-"
"""A cell without a value."""

Row = Mapping[str, Any]
Cell = str | Callable[[Row], str]
"""A cell of a row: a template of the row's values, such as ``{ratio:.2f}``, or a function."""


def mean(values: Sequence[float | None], form: str) -> str:
    """Return the mean of the values that are not None in this format, a dash if all are."""
    known = [value for value in values if value is not None]
    return form.format(fmean(known)) if known else NONE


def milliseconds(name: str, digits: int = 3) -> Cell:
    """Return a cell, in milliseconds, of the time in seconds with this key."""
    return lambda row: NONE if row[name] is None else f"{1000 * row[name]:.{digits}f}"


def table(rows: Sequence[Row], *columns: tuple[str, Cell]) -> str:
    """Return a table with a line for each row; all columns but the first align to the right.

    Args:
        rows: The rows.
        columns: Head and cell of each column. A template is a dash if the row lacks its value.

    >>> print(table([{"name": "a", "s": 0.25}], ("name", "{name}"), ("s", "{s:.1f}")))
    | name | s |
    |:---|---:|
    | a | 0.2 |
    """
    lines = [[_format_cell(cell, row) for _, cell in columns] for row in rows]
    return markdown_table([head for head, _ in columns], lines)


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table of these cells; all columns but the first align to the right."""
    rule = "|:---|" + "---:|" * (len(heads) - 1)
    rows = [f"| {' | '.join(line)} |" for line in (heads, *lines)]
    return "\n".join([rows[0], rule, *rows[1:]])


def _format_cell(cell: Cell, row: Row) -> str:
    if callable(cell):
        return cell(row)
    names = [name for _, name, _, _ in Formatter().parse(cell) if name]
    return NONE if any(row.get(name) is None for name in names) else cell.format_map(row)
