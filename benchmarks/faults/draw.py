"""Jobs with faults by chance, the same for the same seed."""

from collections.abc import Iterator, Sequence
from random import Random

from benchmarks.faults.fault import Fault
from benchmarks.faults.job import FaultyJob
from benchmarks.faults.promise import PROMISES
from hocket.runs.build import parse_method

LAST = 11
"""Faults come up to this tick, so that much of the training is left for what follows."""


def drawn(
    seed: int, count: int, methods: Sequence[str], most_stages: int, faults: int = 1
) -> Iterator[FaultyJob]:
    """So many jobs; kinds of faults come in turn, everything else by chance.

    Args:
        seed: What chance begins with.
        count: How many.
        methods: Of the jobs.
        most_stages: K is from 1 to this.
        faults: How many happen to each job.
    """
    chance = Random(seed)
    kinds = list(PROMISES)
    for number in range(count):
        chosen = [kinds[(number * faults + place) % len(kinds)] for place in range(faults)]
        least = 2 if any(PROMISES[kind].neighbours for kind in chosen) else 1
        stages = chance.randint(least, max(least, most_stages))
        method = chance.choice(list(methods))
        happens = [
            Fault(kind, chance.choice(possible(kind, method, stages)), chance.randint(1, LAST))
            for kind in chosen
        ]
        yield FaultyJob(method, stages, tuple(happens))


def possible(kind: str, method: str, stages: int) -> list[int]:
    """The stages to whose processes a fault can happen."""
    if kind == "kill sealing of":
        return [0]
    if "packet" in kind and not parse_method(method).signal.needs_gradient:
        return list(range(stages - 1))  # the last one sends nothing
    return list(range(stages))
