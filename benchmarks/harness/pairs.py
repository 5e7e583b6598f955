"""Alternating timing of two kinds of steps, so that a drifting machine affects both."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

TimedStep = Callable[[], object]
"""One step of a training, whose result is ignored."""


@dataclass(frozen=True)
class PairedTimes:
    """Times of two kinds of steps, block by block.

    Attributes:
        plain_s: Seconds of each block of the baseline.
        other_s: Seconds of each block of the other kind.
        samples: Samples in a block.
    """

    plain_s: tuple[float, ...]
    other_s: tuple[float, ...]
    samples: int

    @property
    def ratios(self) -> list[float]:
        """Time of the other kind divided by that of the baseline, pair by pair.

        >>> PairedTimes((1.0, 2.0), (1.5, 2.0), samples=4).ratios
        [1.5, 1.0]
        """
        return [other / plain for plain, other in zip(self.plain_s, self.other_s, strict=True)]

    def summary(self) -> dict[str, Any]:
        """Return medians, and the range of the ratios; times are seconds for one sample.

        >>> times = PairedTimes((1.0, 2.0, 2.0), (1.5, 2.0, 2.2), samples=4)
        >>> summary = times.summary()
        >>> summary["ratio"], summary["ratio_min"], summary["ratio_max"]
        (1.1, 1.0, 1.5)
        >>> summary["plain_sample_s"], summary["sample_s"]
        (0.5, 0.5)
        """
        ratios = self.ratios
        return {
            "ratio": median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "ratios": ratios,
            "plain_sample_s": median(self.plain_s) / self.samples,
            "sample_s": median(self.other_s) / self.samples,
        }


def time_pairs(
    plain: TimedStep, other: TimedStep, *, pairs: int, steps: int, batch: int
) -> PairedTimes:
    """Time blocks of steps: plain, other, other, plain, plain, other, ...

    Each block begins with a step that is not timed, for the caches. Pipelines should be full.

    Args:
        plain: One step of the baseline.
        other: One step of the other kind.
        pairs: Number of blocks of each.
        steps: Timed steps in a block.
        batch: Samples in a step.
    """
    plain_s, other_s = [], []
    for pair in range(pairs):
        if pair % 2:
            other_s.append(_time_block(other, steps))
            plain_s.append(_time_block(plain, steps))
        else:
            plain_s.append(_time_block(plain, steps))
            other_s.append(_time_block(other, steps))
    return PairedTimes(tuple(plain_s), tuple(other_s), steps * batch)


def _time_block(step: TimedStep, steps: int) -> float:
    """Return the seconds of these steps, after one that is not timed."""
    step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - start
