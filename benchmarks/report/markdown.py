"""Tables in Markdown."""

from collections.abc import Sequence
from statistics import fmean


def percent(error: float | None) -> str:
    """Return a fraction as percent, a dash if it is None."""
    return "-" if error is None else f"{error:.2%}"


def mean(values: Sequence[float | None], form: str) -> str:
    """Return the mean of the values that are not None in this format, a dash if all are."""
    known = [value for value in values if value is not None]
    return form.format(fmean(known)) if known else "-"


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns but the first are aligned to the right.

    >>> print(markdown_table(("name", "value"), [("a", "1")]))
    | name | value |
    |:---|---:|
    | a | 1 |
    """
    rule = "|:---|" + "---:|" * (len(heads) - 1)
    rows = [f"| {' | '.join(line)} |" for line in (heads, *lines)]
    return "\n".join([rows[0], rule, *rows[1:]])
