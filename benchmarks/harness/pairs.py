"""Two pieces of work timed in turns, so that a drifting machine spoils neither."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

Work = Callable[[], object]


@dataclass(frozen=True)
class Pairs:
    """Times of two pieces of work, block by block.

    Attributes:
        plain_s: Seconds of each block of the one that is compared with.
        other_s: Seconds of each block of the other.
        samples: Samples in a block.
    """

    plain_s: tuple[float, ...]
    other_s: tuple[float, ...]
    samples: int

    @property
    def ratios(self) -> list[float]:
        """How much longer the other took, pair by pair.

        >>> Pairs((1.0, 2.0), (1.5, 2.0), samples=4).ratios
        [1.5, 1.0]
        """
        return [other / plain for plain, other in zip(self.plain_s, self.other_s, strict=True)]

    def summary(self) -> dict[str, Any]:
        """Medians, and the range of the ratios; times are seconds for one sample.

        >>> summary = Pairs((1.0, 2.0, 2.0), (1.5, 2.0, 2.2), samples=4).summary()
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


def time_pairs(plain: Work, other: Work, *, pairs: int, steps: int, batch: int) -> Pairs:
    """Time blocks of steps: plain, other, other, plain, plain, other, ...

    Each block begins with a step that is not timed, for the caches. Work that must fill a
    pipeline first is given full.

    Args:
        plain: One step of what is compared with.
        other: One step of the other.
        pairs: How many blocks of each.
        steps: Timed steps in a block.
        batch: Samples in a step.
    """
    plain_s, other_s = [], []
    for pair in range(pairs):
        if pair % 2:
            other_s.append(_block(other, steps))
            plain_s.append(_block(plain, steps))
        else:
            plain_s.append(_block(plain, steps))
            other_s.append(_block(other, steps))
    return Pairs(tuple(plain_s), tuple(other_s), steps * batch)


def _block(work: Work, steps: int) -> float:
    """Seconds of these steps, after one that does not count."""
    work()
    start = time.perf_counter()
    for _ in range(steps):
        work()
    return time.perf_counter() - start
