"""Alternating timing of two kinds of steps, so that a drifting machine affects both."""

import time
from collections.abc import Callable, Mapping
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
    plain: TimedStep,
    other: TimedStep,
    *,
    pairs: int,
    steps: int,
    batch: int,
    synchronize: Callable[[], object] = lambda: None,
) -> PairedTimes:
    """Time blocks of steps: plain, other, other, plain, plain, other, ...

    Each block begins with a step that is not timed, for the caches. Pipelines should be full.

    Args:
        plain: One step of the baseline.
        other: One step of the other kind.
        pairs: Number of blocks of each.
        steps: Timed steps in a block.
        batch: Samples in a step.
        synchronize: Waits until the device has done all steps, before and after each block.
    """
    loops = {"plain": plain, "other": other}
    times = time_turns(loops, rounds=pairs, steps=steps, synchronize=synchronize)
    return PairedTimes(tuple(times["plain"]), tuple(times["other"]), steps * batch)


def time_turns(
    loops: Mapping[str, TimedStep],
    *,
    rounds: int,
    steps: int,
    synchronize: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Time blocks of steps of several loops, in order, then in reverse order, and so on.

    Args:
        loops: One step of each loop, by name.
        rounds: Number of blocks of each.
        steps: Timed steps in a block.
        synchronize: Waits until the device has done all steps, before and after each block.

    Returns:
        The seconds of each loop's blocks.
    """
    times: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(rounds):
        names = list(loops)
        for name in reversed(names) if turn % 2 else names:
            times[name].append(time_block(loops[name], steps, synchronize))
    return times


def time_block(step: TimedStep, steps: int, synchronize: Callable[[], object]) -> float:
    """Return the seconds of these steps, after one that is not timed.

    Args:
        step: One step.
        steps: Number of steps.
        synchronize: Waits until the device has done all of them.
    """
    step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return time.perf_counter() - start
