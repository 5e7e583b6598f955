"""Random jobs with faults, reproducible by a seed."""

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from random import Random

from benchmarks.faults.expectations import EXPECTATIONS
from benchmarks.faults.fault import Fault
from benchmarks.faults.job import FaultyJob
from hocket.methods import parse_method

LAST = 11
"""Last tick of faults, so that enough of the training is left for the recovery."""
EARLY = 5
"""Last tick of faults to all processes: none of them may have ended by then."""


def draw_jobs(
    seed: int, count: int, methods: Sequence[str], most_stages: int
) -> Iterator[FaultyJob]:
    """Yield jobs of one fault, whose kinds take turns; everything else is random."""
    rng = Random(seed)
    for kind in islice(cycle(EXPECTATIONS), count):
        least = 2 if EXPECTATIONS[kind].needs_neighbour else 1
        stages = rng.randint(least, max(least, most_stages))
        method = rng.choice(list(methods))
        stage = rng.choice(possible_stages(kind, method, stages))
        yield FaultyJob(method, stages, (Fault(kind, stage, rng.randint(*_ticks(kind))),))


def _ticks(kind: str) -> tuple[int, int]:
    """Return the first and last tick at which a fault may happen."""
    if EXPECTATIONS[kind].at_start:
        return 0, 0
    return 1, EARLY if "job of" in kind else LAST


def possible_stages(kind: str, method: str, stages: int) -> list[int]:
    """Return the stages to whose processes a fault can happen."""
    if kind in ("kill sealing of", "slow loader of"):
        return [0]  # which writes manifests, and reads the data
    if "packet" in kind and not parse_method(method).signal.needs_gradient:
        return list(range(stages - 1))  # the last stage sends nothing
    return list(range(stages))
