"""Methods whose packets take more ticks, to hide a slow link, or as stale as you choose."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hocket.errors import OptionError
from hocket.methods.method import MAX_DELAY, Method
from hocket.options.hints import matches_hint
from hocket.options.named import parse_numbers
from hocket.options.require import require_list


def parse_extra_delay(value: int | str) -> int | list[int]:
    """Return extra ticks of all edges, or of each that is written as ``1,0,2``.

    Raises:
        OptionError: The text is no list of whole numbers.
    """
    if isinstance(value, int):
        return value
    ticks = parse_numbers(
        value, "extra_delay", "a number of ticks for all edges, or one for each: 1,0,2"
    )
    return ticks[0] if len(ticks) == 1 else ticks


def with_extra_delay(method: Method, ticks: int | Sequence[int]) -> Method:
    """Return the same method with packets that take more ticks.

    Args:
        method: A method whose packets take at least a tick in one direction.
        ticks: Ticks that are added to each delay of an edge: one number for all edges, or one
            for each. A delay of 0 stays 0: there a stage waits inside a tick.

    Raises:
        OptionError: A number is out of range or there is another number of edges, no edge has a
            delay, so that stages wait inside a tick, stages are free-running and have no ticks,
            or all forwards of a group come before its backwards.

    >>> from hocket.methods import DDG, FDG
    >>> [with_extra_delay(FDG(), 1).delay(k, stages=3) for k in range(3)]
    [8, 4, 0]
    >>> [with_extra_delay(DDG(), [0, 2]).delay(k, stages=3) for k in range(3)]
    [4, 3, 0]
    """
    # Refuse other numbers, and methods with no delay to extend.
    each = [ticks] if isinstance(ticks, int) else require_list("extra_delay", ticks)
    whole = bool(each) and matches_hint(each, list[int])
    if not whole or not all(0 <= more <= MAX_DELAY for more in each):
        raise OptionError(
            f"extra_delay is {ticks}; use whole numbers of ticks in [0, {MAX_DELAY}]"
        )
    if not any(each):
        return method
    if method.free_running:
        raise OptionError(
            f"method {method.name!r} has no ticks: its stages do not wait, and need no "
            "extra delay; leave it at 0"
        )
    same, own = (method.forward_delay, method.backward_delay), method.edge_delays
    if not any(map(sum, [same] if own is None else own)):
        raise OptionError(
            f"method {method.name!r} has no delay that could be extended: its stages wait "
            "for each other inside a tick; leave the extra delay at 0, or use another "
            "method"
        )
    if method.flush == "all-forward":
        raise OptionError(
            f"method {method.name!r} has all forwards of a group before its backwards, so that "
            "no stage has other work for the time that a packet takes; leave the extra delay "
            "at 0, or use 1f1b"
        )

    # Extend the delays of all edges alike, or of each.
    if isinstance(ticks, int):
        forward, backward = _extended(same, ticks)
        delays = None if own is None else tuple(_extended(edge, ticks) for edge in own)
        return replace(
            method, forward_delay=forward, backward_delay=backward, edge_delays=delays
        )
    edges = [same] * len(each) if own is None else own
    if len(each) != len(edges):
        raise OptionError(
            f"extra_delay is {ticks}, and method {method.name!r} has delays of {len(edges)} "
            "edges; give one number for all of them, or one for each"
        )
    return replace(method, edge_delays=tuple(map(_extended, edges, each)))


def _extended(delays: tuple[int, int], ticks: int) -> tuple[int, int]:
    """Return delays of an edge, forward and backward, with more ticks where there are some."""
    forward, backward = delays
    return forward + ticks * (forward > 0), backward + ticks * (backward > 0)


def parse_staleness(text: str) -> list[int]:
    """Return the staleness of each stage that is written as ``6,4,2,0``.

    Raises:
        OptionError: The text is no list of whole numbers.
    """
    return parse_numbers(text, "staleness", "a number for each stage: 6,4,2,0")


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
    profile = require_list("staleness", profile)
    words = f"staleness is {profile}"
    pliant = method.signal.needs_gradient and method.accumulate == 1 and not method.flushes
    if not pliant or method.hold != "newest":
        raise OptionError(
            f"{words}, and method {method.name!r} has none to choose: that needs gradients "
            "from the next stage, an update for each of them (accumulate=1), and the newest "
            "weights, in a pipeline that is not flushed; use ddg or fdg, or leave staleness out"
        )
    whole = matches_hint(profile, list[int])
    steps = tuple(before - behind for before, behind in pairwise(profile)) if whole else ()
    falls = whole and profile[-1:] == [0] and min(steps, default=0) >= 0
    if not falls or profile[0] > MAX_DELAY:
        raise OptionError(
            f"{words}; write whole numbers of updates that fall to 0 at the last stage, from "
            f"{MAX_DELAY} at most: the gradient of a batch reaches no stage before the next one"
        )
    delays = tuple((0, step) for step in steps)
    return replace(method, edge_delays=delays, order="forward-first")
