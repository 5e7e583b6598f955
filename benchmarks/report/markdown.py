"""Tables in Markdown."""

from collections.abc import Sequence
from statistics import fmean


def percent(error: float | None) -> str:
    """A fraction in per cent, a dash for none."""
    return "-" if error is None else f"{error:.2%}"


def mean(values: Sequence[float | None], form: str) -> str:
    """The mean of what there is, in this form."""
    there = [value for value in values if value is not None]
    return form.format(fmean(there)) if there else "-"


def lines_of(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first aligned to the right.

    >>> print(lines_of(("name", "value"), [("a", "1")]))
    | name | value |
    |:---|---:|
    | a | 1 |
    """
    rule = "|:---|" + "---:|" * (len(heads) - 1)
    rows = [f"| {' | '.join(line)} |" for line in (heads, *lines)]
    return "\n".join([rows[0], rule, *rows[1:]])
