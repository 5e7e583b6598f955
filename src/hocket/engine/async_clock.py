"""When each stage takes its turns, where every stage runs at its own pace."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from random import Random
from typing import Any, Literal, get_args

from hocket.errors import OptionError, listed
from hocket.methods.method import Method

StageTiming = Literal["regular", "random"]


@dataclass(frozen=True)
class StageSpeeds:
    """How fast each stage is.

    Attributes:
        speeds: Turns of each stage in a unit of time.
        timing: ``regular``: at equal intervals. ``random``: at intervals that are exponentially
            distributed, so that each turn falls to a stage by chance, in proportion to its
            rate, as in the official code of arXiv 1901.08164.
        seed: What chance begins with.

    Raises:
        OptionError: A rate is not positive, or the kind of turns is unknown.
    """

    speeds: tuple[float, ...]
    timing: StageTiming = "regular"
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"the rate of stage {k} is {rate}; use a number above 0"
            for k, rate in enumerate(self.speeds)
            if not (rate > 0 and isfinite(rate))
        ]
        if self.timing not in get_args(StageTiming):
            problems.append(f"turns is {self.timing!r}; use 'regular' or 'random'")
        if problems:
            raise OptionError(listed("stages cannot run at this pace", problems))


class EventClock:
    """Gives the turns of all stages in order; at the same time the first stage comes first.

    >>> clock = Clock(Pace(rates=(1, 0.5, 2)))
    >>> [clock.next() for _ in range(7)]
    [2, 0, 2, 2, 0, 1, 2]
    """

    def __init__(self, pace: StageSpeeds) -> None:
        self._pace = pace
        self._chance = Random(pace.seed)
        self._taken = [0] * len(pace.speeds)
        self._queue = [(self._after(k, 0.0), k) for k in range(len(pace.speeds))]
        heapq.heapify(self._queue)

    @property
    def upcoming(self) -> int:
        """The stage whose turn is next."""
        return self._queue[0][1]

    def next(self) -> int:
        """The stage whose turn it is."""
        now, stage = self._queue[0]
        self._taken[stage] += 1
        heapq.heapreplace(self._queue, (self._after(stage, now), stage))
        return stage

    def state_dict(self) -> dict[str, Any]:
        """The turns that were taken, those that are next, and the chance of those to come."""
        return {
            "taken": list(self._taken),
            "queue": list(self._queue),
            "chance": self._chance.getstate(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where a clock of the same pace had come to."""
        self._taken = list(state["taken"])
        self._queue = list(state["queue"])
        self._chance.setstate(state["chance"])

    def _after(self, stage: int, now: float) -> float:
        """The time of a stage's turn after this one."""
        rate = self._pace.speeds[stage]
        if self._pace.timing == "random":
            return now + self._chance.expovariate(rate)
        # Of the whole number, as sums of fractions would drift apart at equal rates.
        return (self._taken[stage] + 1) / rate


def equal_speeds(stages: int) -> StageSpeeds:
    """The pace at which all stages keep step."""
    return StageSpeeds((1.0,) * stages)


def build_stage_speeds(
    method: Method, count: int, rates: Sequence[float] | None, turns: StageTiming, seed: int
) -> StageSpeeds | None:
    """How fast each stage is, where they run freely; None where they keep step.

    Raises:
        OptionError: The stages keep step, or there is not one rate for each.
    """
    if method.replay is None:
        if rates is not None or turns != "regular":
            raise OptionError(
                f"rates and turns are for stages that run freely, but those of method "
                f"{method.name!r} keep step; leave them out, or use a method with a buffer"
            )
        return None
    if rates is not None and len(rates) != count:
        raise OptionError(f"there are {len(rates)} rates for {count} stages; give one for each")
    return StageSpeeds(
        equal_speeds(count).speeds if rates is None else tuple(rates), turns, seed
    )
