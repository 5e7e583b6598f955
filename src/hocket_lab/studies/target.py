"""Metrics that a study compares, and the target that a run is to reach."""

import math
import re
from dataclasses import dataclass

from hocket.errors import OptionError, unknown_name

METRICS = ("test_loss", "test_error", "train_loss")
"""Metrics, which `Point` explains; less is better for each of them."""
_FORM = re.compile(r"\s*([\w-]+)\s*(<=|>=|<|>|==?)\s*(\S+)\s*")


@dataclass(frozen=True)
class Target:
    """Value that a metric is to reach.

    Attributes:
        metric: Name of the metric.
        limit: The largest value that counts.

    >>> Target.parse("test_loss<=1.90")
    Target(metric='test_loss', limit=1.9)
    """

    metric: str
    limit: float

    @staticmethod
    def parse(text: str) -> "Target":
        """Parse a target that is written ``test_loss <= 1.90``.

        Raises:
            OptionError: It has another form, or names a metric that does not exist.
        """
        if (found := _FORM.fullmatch(text)) is None:
            raise OptionError(f"target is {text!r}; write it like 'test_loss <= 1.90'")
        metric, sign, number = found.groups()
        check_metric("target", metric)
        if sign != "<=":
            raise OptionError(
                f"target is {text!r}, but less is better for {metric}; write '{metric} <= ...'"
            )
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not math.isfinite(limit):
            raise OptionError(f"target is {text!r}; wanted a finite number, not {number!r}")
        if metric == "test_error" and not 0 <= limit < 1:
            raise OptionError(
                f"target is {text!r}; use a share in [0, 1): 10 % are 'test_error <= 0.1'"
            )
        return Target(metric, limit)


def check_metric(key: str, name: str) -> None:
    """Check that the metric exists that a key of a study names.

    Raises:
        OptionError: It does not exist.
    """
    if name not in METRICS:
        raise OptionError(f"{key}: {unknown_name('metric', name, METRICS)}")
