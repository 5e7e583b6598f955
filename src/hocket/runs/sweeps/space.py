"""Ranges of options that a search tries values of."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hocket.errors import OptionError, unknown_name
from hocket.methods.registry import with_option
from hocket.options import wrong_options
from hocket.runs.config import RunConfig
from hocket.runs.sweeps.rows import with_learning_rate

RATE = "learning_rate"
"""Name of the learning rate of the optimizer in a search."""
NAMED = ("method", "network", "data", "optimizer", "scheduler")
"""Options with options of their own, which a search names ``optimizer.weight_decay``."""
DIGITS = 6
"""Significant digits of the values that are tried, so that commands can be read."""


@dataclass(frozen=True)
class Choice:
    """Values to choose from.

    Attributes:
        values: The values.
    """

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that stand for all when a study is checked."""
        return self.values

    def rounded(self, value: Any) -> Any:
        """Return a value as it is."""
        return value


@dataclass(frozen=True)
class Interval:
    """Numbers between two ends.

    Attributes:
        low: The smallest number.
        high: The largest number.
        log: Try as many numbers between 1 and 10 as between 10 and 100.
    """

    low: float
    high: float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """True for whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that stand for all when a study is checked."""
        return (self.low, self.high)

    def rounded(self, value: Any) -> Any:
        """Return a number between the ends with few digits, as it is written in commands."""
        if self.is_whole:
            return value
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


Dimension: TypeAlias = Choice | Interval


def parse_space(table: Mapping[str, Any]) -> dict[str, Dimension]:
    """Return the dimension of each option of the table ``search`` of a study.

    Args:
        table: For each option a list of values, or a table with ``low`` and ``high``, and
            perhaps ``log``.

    Raises:
        OptionError: An option does not exist, or its values are no such list or table.

    >>> parse_space({"learning_rate": {"low": 0.001, "high": 0.1, "log": True}})
    {'learning_rate': Interval(low=0.001, high=0.1, log=True)}
    """
    return {name: _parse_dimension(name, value) for name, value in table.items()}


def _parse_dimension(name: str, value: Any) -> Dimension:
    outer, dot, inner = name.partition(".")
    known = typing.get_type_hints(RunConfig)
    if name != RATE and (outer not in NAMED if dot else name not in known):
        raise OptionError(unknown_name("option of a search", name, [RATE, *known]))
    if dot and not inner:
        raise OptionError(f"{name!r} names no option; write {outer}.option")
    if isinstance(value, list | tuple):
        if not value:
            raise OptionError(f"{name} is an empty list; give at least one value")
        return Choice(tuple(value))
    hints: dict[str, Any] = {"low": float, "high": float, "log": bool}
    if not isinstance(value, Mapping) or not {"low", "high"} <= value.keys():
        raise OptionError(
            f"{name} is {value!r}; wanted a list of values, or {{low = 0.01, high = 1.0}}"
        )
    if problems := wrong_options(value, hints, hints):
        raise OptionError(f"{name}: {problems[0]}")
    if name == RATE:  # never a whole number only because its ends are written as such
        value = {**value, "low": float(value["low"]), "high": float(value["high"])}
    interval = Interval(**value)
    if not interval.low < interval.high:
        raise OptionError(f"{name} has low {interval.low} and high {interval.high}; swap them")
    if interval.log and interval.low <= 0:
        raise OptionError(f"{name} has low {interval.low}; with log it must be above 0")
    return interval


def with_values(options: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the values of a trial.

    Args:
        options: Options of a row.
        values: Values by their names in the search.

    Raises:
        OptionError: The scheduler sets learning rates of its own.

    >>> with_values({"method": "fdg+predict"}, {"method.shrink": 0.5, "batch_size": 8})
    {'method': 'fdg:shrink=0.5+predict', 'batch_size': 8}
    """
    changed = dict(options)
    # The options of an optimizer, and its rate, are those of the one that is chosen.
    for name in sorted(values, key=lambda name: (name == RATE, "." in name)):
        value = values[name]
        outer, dot, inner = name.partition(".")
        if name == RATE:
            changed = with_learning_rate(changed, value)
        elif dot:
            changed[outer] = with_option(_text(changed, outer), inner, value)
        else:
            changed[name] = value
    return changed


def corners(space: Mapping[str, Dimension]) -> Sequence[dict[str, Any]]:
    """Return values that together have every end of every dimension.

    >>> corners({"a": Interval(0.1, 0.2), "b": Choice((1, 2, 3))})
    [{'a': 0.1, 'b': 1}, {'a': 0.2, 'b': 2}, {'a': 0.2, 'b': 3}]
    """
    count = max((len(dimension.ends) for dimension in space.values()), default=0)
    return [
        {name: each.ends[min(k, len(each.ends) - 1)] for name, each in space.items()}
        for k in range(count)
    ]


def _text(options: Mapping[str, Any], name: str) -> str:
    return str(options.get(name, getattr(RunConfig, name)))
