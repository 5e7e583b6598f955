"""Rows timed in turns, round after round, so that a drifting machine spoils none of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.harness.load import await_quiet
from benchmarks.harness.repetition import Repetition
from hocket.timeline import Fractions

Repeat = Callable[[], Repetition]
"""Does one repetition of a row."""


@dataclass(frozen=True)
class NoisePolicy:
    """When a repetition counts.

    Attributes:
        foreign: The largest share of the machine that others may use meanwhile.
        retries: How often a disturbed repetition is done again before the least disturbed of
            them is taken.
        patience_s: How long to wait before each retry for others to end.
    """

    foreign: float
    retries: int
    patience_s: float


@dataclass(frozen=True)
class Turn:
    """What a row did in a round.

    Attributes:
        taken: The repetition that counts.
        dropped: Disturbed ones that do not.
    """

    taken: Repetition
    dropped: int


def turn(repeat: Repeat, quiet: NoisePolicy) -> Turn:
    """Repeat until others leave the machine alone, or often enough."""
    tried = [repeat()]
    while (tried[-1].foreign or 0.0) > quiet.foreign and len(tried) <= quiet.retries:
        await_quiet(quiet.foreign, quiet.patience_s)
        tried.append(repeat())
    return Turn(min(tried, key=lambda one: one.foreign or 0.0), len(tried) - 1)


def rounds(repeats: Sequence[Repeat], number: int, quiet: NoisePolicy) -> list[list[Turn]]:
    """The turns of each row; every other round goes backwards."""
    turns: list[list[Turn]] = [[] for _ in repeats]
    for done in range(number):
        order = range(len(repeats))
        for row in reversed(order) if done % 2 else order:
            turns[row].append(turn(repeats[row], quiet))
    return turns


def summary(
    turns: Sequence[Turn],
    base: Sequence[Turn],
    *,
    samples: int,
    base_samples: int,
    quiet: NoisePolicy,
) -> dict[str, Any]:
    """Medians over rounds, and the range of the ratios to the base of the same round.

    Args:
        turns: Of the row.
        base: Of the row that is compared with, in the same rounds.
        samples: That the row finishes in a repetition.
        base_samples: The same of the base.
        quiet: When a repetition is disturbed.
    """
    pairs = [(mine.taken, other.taken) for mine, other in zip(turns, base, strict=True)]
    ratios = [samples / mine.wall_s / (base_samples / other.wall_s) for mine, other in pairs]
    cpu_ratios = [mine.cpu_s / samples / (other.cpu_s / base_samples) for mine, other in pairs]
    return {
        "samples_per_s": median(samples / mine.wall_s for mine, _ in pairs),
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratios": ratios,
        "cpu_s_per_sample": median(mine.cpu_s / samples for mine, _ in pairs),
        "cpu_ratio": median(cpu_ratios),
        "other_cpu": median((mine.other_cpu_s or 0.0) / mine.cpu_s for mine, _ in pairs),
        "communication": medians([mine.spent for mine, _ in pairs], "communication"),
        "waiting": medians([mine.spent for mine, _ in pairs], "waiting"),
        "foreign": [mine.foreign for mine, _ in pairs],
        "disturbed": sum((mine.foreign or 0.0) > quiet.foreign for mine, _ in pairs),
        "dropped": sum(mine.dropped for mine in turns),
    }


def medians(seen: Sequence[Sequence[Fractions]], what: str) -> list[float]:
    """One of the fractions of each process, over rounds; empty if they are not recorded."""
    return [median(getattr(one, what) for one in mine) for mine in zip(*seen, strict=True)]
