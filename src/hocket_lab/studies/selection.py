"""Choice of the learning rate of a row, by a rule that the record quotes."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

RULE = (
    "Of the learning rates of a row the best is the one with the least mean, over the seeds of "
    "the sweep, of the last {metric} of each run. A run that diverged counts as infinite; of "
    "equal means the smaller rate wins. A row without a finite mean has no best rate."
)
"""Text of the rule, with a place for the metric."""
HELD_OUT = (
    "In the sweep {share:.4g} of the training examples were held out, and runs were evaluated "
    "on these, so that the test data chose nothing. The results are those of runs with the "
    "best rate, with all seeds and on all training examples."
)
"""The addition for examples that were held out, with a place for their share."""


def best_rate(values: Mapping[float, Sequence[float]]) -> float | None:
    """Return the best learning rate; None if the mean of none is finite.

    Args:
        values: Last value of the metric in each run of each rate, infinity if it diverged.

    >>> best_rate({0.2: [1.5], 0.1: [1.5], 0.4: [math.inf]})
    0.1
    """
    means = {r: mean for r, each in values.items() if math.isfinite(mean := fmean(each))}
    return min(means, key=lambda rate: (means[rate], rate), default=None)


def is_chosen(row: Mapping[str, Any], run: Mapping[str, Any]) -> bool:
    """Return True if the results of a row of a record are of this run, among others.

    Older records do not mark it: there it is one at the best rate.
    """
    return bool(run.get("chosen", run["learning_rate"] == row["learning_rate"]))


def is_at_edge(rate: float | None, rates: Sequence[float | None]) -> bool:
    """Return True if a rate is the smallest or largest of several: a better one may be beyond.

    >>> is_at_edge(0.1, [0.1, 0.2, 0.4]), is_at_edge(0.2, [0.1, 0.2, 0.4])
    (True, False)
    """
    numbers = [each for each in rates if each is not None]
    return rate is not None and len(numbers) > 1 and rate in (min(numbers), max(numbers))
