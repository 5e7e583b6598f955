"""The order in which stages that run freely take their turns, in simulated time."""

import heapq
from random import Random
from typing import Any

from hocket.methods.simulated.stage_speeds import StageSpeeds


class EventClock:
    """Sequence of turns of all stages; of turns at the same time the first stage's comes first.

    >>> clock = EventClock(StageSpeeds((1, 0.5, 2)))
    >>> [clock.next() for _ in range(7)]
    [2, 0, 2, 2, 0, 1, 2]
    """

    def __init__(self, speeds: StageSpeeds) -> None:
        self._speeds = speeds
        self._random = Random(speeds.seed)
        self._taken = [0] * len(speeds.speeds)
        self._queue = [(self._time_after(k, 0.0), k) for k in range(len(speeds.speeds))]
        heapq.heapify(self._queue)

    @property
    def upcoming(self) -> int:
        """Stage whose turn is next."""
        return self._queue[0][1]

    def next(self) -> int:
        """Take the next turn; return its stage."""
        now, stage = self._queue[0]
        self._taken[stage] += 1
        heapq.heapreplace(self._queue, (self._time_after(stage, now), stage))
        return stage

    def state_dict(self) -> dict[str, Any]:
        """Return the turns taken, the next turn of each stage, and the state of the RNG."""
        return {
            "taken": list(self._taken),
            "queue": list(self._queue),
            "random": self._random.getstate(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a clock of the same speeds."""
        self._taken = list(state["taken"])
        self._queue = list(state["queue"])
        self._random.setstate(state["random"])

    def _time_after(self, stage: int, now: float) -> float:
        """Time of a stage's turn after the one that it takes now."""
        speed = self._speeds.speeds[stage]
        if self._speeds.timing == "random":
            return now + self._random.expovariate(speed)
        # From the number of turns, as sums of fractions would drift apart at equal speeds.
        return (self._taken[stage] + 1) / speed
