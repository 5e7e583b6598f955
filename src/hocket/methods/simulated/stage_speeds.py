"""Speed of each stage, for methods whose stages run freely."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import get_args

from hocket.errors import OptionError, format_problems
from hocket.methods.method import Method
from hocket.options.common_options import StageTiming
from hocket.options.ranges import wrong_choice
from hocket.options.require import require_list


@dataclass(frozen=True)
class StageSpeeds:
    """Speed of each stage.

    Attributes:
        speeds: Turns that each stage takes in a unit of time.
        timing: ``regular``: at equal intervals. ``random``: at intervals that are exponentially
            distributed, so that each turn falls to a stage by chance, in proportion to its
            speed, as in the official code of arXiv 1901.08164.
        seed: Seed of these random numbers.

    Raises:
        OptionError: A speed is not positive, or the timing is unknown.
    """

    speeds: tuple[float, ...]
    timing: StageTiming = "regular"
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"the speed of stage {k} is {speed}; use a number above 0"
            for k, speed in enumerate(self.speeds)
            if not (speed > 0 and isfinite(speed))
        ]
        problems += wrong_choice("stage_timing", self.timing, get_args(StageTiming))
        if problems:
            raise OptionError(format_problems("stages cannot run at these speeds", problems))


def build_stage_speeds(
    method: Method,
    stages: int,
    speeds: Sequence[float] | None,
    timing: StageTiming,
    seed: int,
) -> StageSpeeds | None:
    """Check the given speeds; return None for stages that keep step.

    Args:
        method: The method; only one with a replay buffer lets stages run freely.
        stages: Number of stages.
        speeds: One for each stage; equal ones if not given.
        timing: Intervals between the turns of a stage.
        seed: Seed of random intervals.

    Raises:
        OptionError: The stages keep step, or there is not one speed for each.
    """
    if not method.free_running:
        if speeds is not None or timing != "regular":
            raise OptionError(
                f"stage_speeds and stage_timing are for stages that run freely, but those of "
                f"method {method.name!r} keep step; leave them out, or use a method with a "
                "replay buffer"
            )
        return None
    speeds = None if speeds is None else require_list("stage_speeds", speeds)
    if speeds is not None and len(speeds) != stages:
        raise OptionError(
            f"there are {len(speeds)} stage_speeds for {stages} stages; give one for each"
        )
    return StageSpeeds((1.0,) * stages if speeds is None else tuple(speeds), timing, seed)
