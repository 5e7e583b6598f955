"""Ranges and choices of options."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from hocket.options.hints import matches_hint


@dataclass(frozen=True)
class Range:
    """Numbers that an option can have.

    Attributes:
        least: The smallest one.
        above: Limit that all are above.
        most: The largest one.
        below: Limit that all are below.

    >>> str(Range(least=1)), str(Range(above=0, most=1)), str(Range(least=0, below=1))
    ('a number of at least 1', 'a number in (0, 1]', 'a number in [0, 1)')
    """

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        upper = f"{self.most}]" if math.isfinite(self.most) else f"{self.below})"
        if math.isfinite(min(self.most, self.below)):
            lower = f"[{self.least}" if math.isfinite(self.least) else f"({self.above}"
            return f"a number in {lower}, {upper}"
        if math.isfinite(self.least):
            return f"a number of at least {self.least}"
        return f"a number above {self.above}"


MAX_SEED = 2**63 - 1
"""Largest seed of a generator of PyTorch that leaves room for the numbers of replicas."""
MAX_TIMEOUT_S = 10**6
"""Some 11 days; much longer ones overflow in PyTorch's counters of nanoseconds."""


def out_of_range(value: Any, ranges: Mapping[str, Range]) -> list[str]:
    """Return one problem for each number that is out of its range.

    Args:
        value: A value with numbers as attributes. What is no finite number is not compared:
            `wrong_fields` reports it.
        ranges: Range of each attribute, by its name.

    >>> from types import SimpleNamespace
    >>> out_of_range(SimpleNamespace(seed=-1), {"seed": Range(least=0)})
    ['seed is -1; use a number of at least 0']
    """
    return [
        f"{name} is {number!r}; use {limits}"
        for name, limits in ranges.items()
        if matches_hint(number := getattr(value, name), int | float) and number not in limits
    ]


def wrong_counts(least: int, **numbers: object) -> list[str]:
    """Return one problem for each number that is not whole, or is too small.

    >>> wrong_counts(1, steps=0, batch=8)
    ['steps is 0; use a whole number of at least 1']
    """
    return [
        f"{name} is {number!r}; use a whole number of at least {least}"
        for name, number in numbers.items()
        if not isinstance(number, Integral) or isinstance(number, bool) or number < least
    ]


def wrong_choice(name: str, value: object, choices: Collection[str]) -> list[str]:
    """Return one problem if the value is not one of the choices, and none if it is.

    Args:
        name: Name of the option.
        value: Its value.
        choices: All valid values, for instance ``get_args`` of a `Literal`.

    >>> wrong_choice("reduce", "max", ["mean", "sum"])
    ["reduce is 'max'; use 'mean' or 'sum'"]
    """
    if value in choices:
        return []
    return [f"{name} is {value!r}; use {' or '.join(map(repr, choices))}"]
