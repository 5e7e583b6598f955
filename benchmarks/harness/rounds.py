"""Timing of rows in rounds, so that a drifting machine affects all of them alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.harness.load import wait_until_quiet
from benchmarks.harness.repetition import Repetition
from hocket.timeline import Fractions

Repeat = Callable[[], Repetition]
"""A function that runs one repetition of a row."""


@dataclass(frozen=True)
class NoisePolicy:
    """Conditions under which a repetition counts.

    Attributes:
        foreign: Largest share of the machine that other programs may use meanwhile.
        retries: Number of retries of a disturbed repetition; after them the least disturbed
            one counts.
        patience_s: Longest time to wait before each retry for other programs to end.
    """

    foreign: float
    retries: int
    patience_s: float


@dataclass(frozen=True)
class Turn:
    """The result of a row in a round.

    Attributes:
        counted: The repetition that counts.
        dropped: Number of disturbed ones that do not.
    """

    counted: Repetition
    dropped: int


def take_turn(repeat: Repeat, quiet: NoisePolicy) -> Turn:
    """Repeat until a repetition is undisturbed, or the retries are used up."""
    tried = [repeat()]
    while (tried[-1].foreign or 0.0) > quiet.foreign and len(tried) <= quiet.retries:
        wait_until_quiet(quiet.foreign, quiet.patience_s)
        tried.append(repeat())
    return Turn(min(tried, key=lambda one: one.foreign or 0.0), len(tried) - 1)


def run_rounds(repeats: Sequence[Repeat], number: int, quiet: NoisePolicy) -> list[list[Turn]]:
    """Return the turns of each row; every other round is in reverse order.

    Args:
        repeats: The rows.
        number: Number of rounds.
        quiet: When a repetition counts.
    """
    turns: list[list[Turn]] = [[] for _ in repeats]
    for done in range(number):
        order = range(len(repeats))
        for row in reversed(order) if done % 2 else order:
            turns[row].append(take_turn(repeats[row], quiet))
    return turns


def summarize_turns(
    turns: Sequence[Turn],
    base: Sequence[Turn],
    *,
    samples: int,
    base_samples: int,
    quiet: NoisePolicy,
) -> dict[str, Any]:
    """Return medians over rounds, and the range of the ratios to the base of the same round.

    Args:
        turns: Turns of the row.
        base: Turns of the row that is compared with, in the same rounds.
        samples: Samples that the row finishes in a repetition.
        base_samples: Samples that the base finishes in a repetition.
        quiet: When a repetition is disturbed.
    """
    pairs = [(row.counted, other.counted) for row, other in zip(turns, base, strict=True)]
    ratios = [samples / row.wall_s / (base_samples / other.wall_s) for row, other in pairs]
    cpu_ratios = [row.cpu_s / samples / (other.cpu_s / base_samples) for row, other in pairs]
    return {
        "samples_per_s": median(samples / row.wall_s for row, _ in pairs),
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratios": ratios,
        "cpu_s_per_sample": median(row.cpu_s / samples for row, _ in pairs),
        "cpu_ratio": median(cpu_ratios),
        "other_cpu": median((row.other_cpu_s or 0.0) / row.cpu_s for row, _ in pairs),
        "communication": median_fractions([row.spent for row, _ in pairs], "communication"),
        "waiting": median_fractions([row.spent for row, _ in pairs], "waiting"),
        "foreign": [row.foreign for row, _ in pairs],
        "disturbed": sum((row.foreign or 0.0) > quiet.foreign for row, _ in pairs),
        "dropped": sum(row.dropped for row in turns),
    }


def median_fractions(rounds: Sequence[Sequence[Fractions]], name: str) -> list[float]:
    """Return the median over rounds of a fraction for each process; empty if not recorded.

    Args:
        rounds: The fractions of each process, for each round.
        name: The fraction, such as "waiting".
    """
    return [
        median(getattr(one, name) for one in process) for process in zip(*rounds, strict=True)
    ]
