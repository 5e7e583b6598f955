"""Speed of each stage, for methods whose stages run freely."""

from collections.abc import Sequence

from hocket.errors import OptionError, raise_problems
from hocket.methods.method import Method
from hocket.options.hints import matches_hint
from hocket.options.require import require_list


def require_stage_speeds(
    method: Method, stages: int, speeds: Sequence[float] | None
) -> tuple[float, ...] | None:
    """Return the speed of each stage; None for stages that keep step.

    Args:
        method: The method; only one with a replay buffer lets stages run freely.
        stages: Number of stages.
        speeds: Turns that each stage takes in a unit of time; equal ones if not given.

    Raises:
        OptionError: The stages keep step, there is not one speed for each, or a speed is not
            positive.
    """
    if not method.free_running:
        if speeds is not None:
            raise OptionError(
                "stage_speeds are for stages that run freely, but those of method "
                f"{method.name!r} keep step; leave them out, or use a method with a replay "
                "buffer"
            )
        return None
    if speeds is None:
        return (1.0,) * stages
    speeds = require_list("stage_speeds", speeds)
    if len(speeds) != stages:
        raise OptionError(
            f"there are {len(speeds)} stage_speeds for {stages} stages; give one for each"
        )
    problems = [
        f"the speed of stage {k} is {speed!r}; use a number above 0"
        for k, speed in enumerate(speeds)
        if not matches_hint(speed, float) or speed <= 0
    ]
    raise_problems(OptionError, "stages cannot run at these speeds", problems)
    return tuple(speeds)
