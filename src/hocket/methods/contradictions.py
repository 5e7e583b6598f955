"""Choices of a method that cannot be honoured together."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.methods.method import Method


def contradictions(method: "Method") -> list[str]:
    """Return in words each pair of choices of a method that contradict each other."""
    linearize, hold, signal = method.linearize, method.hold, method.signal
    problems = []
    if method.statistics == "both" and linearize != "recompute":
        problems.append(
            f"statistics='both' with linearize={linearize!r}: "
            "there is no second pass to count; use linearize='recompute'"
        )
    if method.flushes:
        problems += _flush_problems(method)
    elif hold != "newest" and not (signal.needs_gradient and linearize == "stash"):
        problems.append(
            f"hold={hold!r} with linearize={linearize!r}: a backward has to meet "
            "the old weights of its forward, which are those of linearize='stash' with "
            "gradients from the next stage; leave hold at 'newest'"
        )
    if method.free_running and (signal.needs_gradient or signal.learns_from_gradient):
        problems.append(
            "replay draws batches from a buffer, but the signal needs an answer for each "
            "batch; use a local loss"
        )
    return problems


def _flush_problems(method: "Method") -> list[str]:
    flush, linearize, hold = method.flush, method.linearize, method.hold
    problems = []
    if not method.signal.needs_gradient:
        problems.append(
            f"flush={flush!r} waits for gradients from the next stage, and the signal needs "
            "none; leave flush at 'never'"
        )
    if linearize == "live" or hold != "newest":
        problems.append(
            f"flush={flush!r} with linearize={linearize!r} and hold={hold!r}: no weight "
            "changes between a forward and its backward, so there are no others to choose; "
            "use linearize='stash', or 'recompute' to keep inputs instead of graphs, and "
            "hold='newest'"
        )
    if flush == "all-forward" and method.order == "backward-first":
        problems.append(
            "flush='all-forward' with order='backward-first': a backward would begin before "
            "the last forward; use order='forward-first', or flush='alternate'"
        )
    return problems
