"""Methods with a staleness of your choice at each stage."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hocket.errors import OptionError
from hocket.methods.method import MAX_DELAY, Method


def parse_staleness(text: str) -> list[int]:
    """Return the staleness of each stage that is written as ``6,4,2,0``.

    Raises:
        OptionError: The text is no list of whole numbers.
    """
    try:
        return [int(updates) for updates in text.split(",")]
    except ValueError as error:
        raise OptionError(
            f"staleness is {text!r}; write a number for each stage: 6,4,2,0"
        ) from error


def with_staleness(method: Method, profile: Sequence[int]) -> Method:
    """Return the same method with a staleness of your choice at each stage.

    Activations cross every edge within a tick, and gradients take as many ticks as the two
    stages differ in staleness. So a few stages see gradients as late as in a pipeline that is
    deeper, or cut unevenly.

    Args:
        method: A method with late gradients.
        profile: Updates between the forward of a batch and its backward, for each stage; 0 at
            the last one, and nowhere more than at the stage before.

    Raises:
        OptionError: There is no such profile, or the method has no staleness to choose.

    >>> from hocket.methods import DDG
    >>> method = with_staleness(DDG(), [6, 3, 0])
    >>> [method.staleness(k, stages=3) for k in range(3)]
    [6.0, 3.0, 0.0]
    """
    words = f"staleness is {list(profile)}"
    pliant = method.signal.needs_gradient and method.accumulate == 1 and not method.flushes
    if not pliant or method.hold != "newest":
        raise OptionError(
            f"{words}, and method {method.name!r} has none to choose: that needs gradients "
            "from the next stage, an update for each of them (accumulate=1), and the newest "
            "weights, in a pipeline that is not flushed; use ddg or fdg, or leave staleness out"
        )
    steps = tuple(before - behind for before, behind in pairwise(profile))
    falls = bool(profile) and profile[-1] == 0 and min(steps, default=0) >= 0
    if not falls or profile[0] > MAX_DELAY:
        raise OptionError(
            f"{words}; write numbers of updates that fall to 0 at the last stage, from "
            f"{MAX_DELAY} at most: the gradient of a batch reaches no stage before the next one"
        )
    delays = tuple((0, step) for step in steps)
    return replace(method, edge_delays=delays, order="forward-first")
