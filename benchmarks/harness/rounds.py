"""Rounds in which all take turns, so that a drifting machine affects all alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")
TimedStep = Callable[[], object]
"""One step of a training, whose result is ignored."""


def run_rounds(turns: Sequence[Callable[[], T]], number: int) -> list[list[T]]:
    """Return the results of each turn; every other round is in reverse order.

    Args:
        turns: A function for each turn of a round.
        number: Number of rounds.

    >>> run_rounds([lambda: "a", lambda: "b"], 2)
    [['a', 'a'], ['b', 'b']]
    """
    results: list[list[T]] = [[] for _ in turns]
    for done in range(number):
        order = range(len(turns))
        for turn in reversed(order) if done % 2 else order:
            results[turn].append(turns[turn]())
    return results


def summarize_pairs(
    plain_s: Sequence[float], other_s: Sequence[float], samples: int
) -> dict[str, Any]:
    """Return medians, and the range of the ratios; times are seconds for one sample.

    The times given are seconds of blocks of ``samples`` samples, in the same rounds.
    """
    ratios = [other / plain for plain, other in zip(plain_s, other_s, strict=True)]
    return {
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratios": ratios,
        "plain_sample_s": median(plain_s) / samples,
        "sample_s": median(other_s) / samples,
    }


def time_turns(
    loops: Mapping[str, TimedStep],
    *,
    rounds: int,
    steps: int,
    synchronize: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Time blocks of steps of several loops, in order, then in reverse order, and so on.

    Each block begins with a step that is not timed, for the caches. Pipelines should be full.

    Args:
        loops: One step of each loop, by name.
        rounds: Number of blocks of each.
        steps: Timed steps in a block.
        synchronize: Waits for what a device or a thread still does, before and after each
            block.

    Returns:
        The seconds of each loop's blocks.
    """
    blocks = [partial(time_block, loop, steps, synchronize) for loop in loops.values()]
    return dict(zip(loops, run_rounds(blocks, rounds), strict=True))


def time_block(step: TimedStep, steps: int, synchronize: Callable[[], object]) -> float:
    """Return the seconds of these steps, after one that is not timed."""
    step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return time.perf_counter() - start
