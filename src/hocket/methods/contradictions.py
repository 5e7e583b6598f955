"""Choices of a method that cannot be honoured together."""

from hocket.signals.signal import Signal


def contradictions(
    *,
    linearize: str,
    order: str,
    hold: str,
    flush: str,
    statistics: str,
    signal: Signal,
    free_running: bool,
) -> list[str]:
    """Return in words each pair of choices that contradict each other.

    Args:
        linearize: Weights that a late gradient is applied at.
        order: Work that a stage does first in a tick.
        hold: Version of its weights that a stage forwards with.
        flush: Order of the batches of a group that is flushed, or ``never``.
        statistics: Passes that update BatchNorm's running statistics.
        signal: Source of a stage's error.
        free_running: True if stages draw their inputs from buffers.
    """
    problems = []
    if statistics == "both" and linearize != "recompute":
        problems.append(
            f"statistics='both' with linearize={linearize!r}: "
            "there is no second pass to count; use linearize='recompute'"
        )
    if flush != "never":
        problems += _flush_problems(flush, linearize, order, hold, signal)
    elif hold != "newest" and not (signal.needs_gradient and linearize == "stash"):
        problems.append(
            f"hold={hold!r} with linearize={linearize!r}: a backward has to meet "
            "the old weights of its forward, which are those of linearize='stash' with "
            "gradients from the next stage; leave hold at 'newest'"
        )
    if free_running and (signal.needs_gradient or signal.learns_from_gradient):
        problems.append(
            "replay draws batches from a buffer, but the signal needs an answer for each "
            "batch; use a local loss"
        )
    return problems


def _flush_problems(
    flush: str, linearize: str, order: str, hold: str, signal: Signal
) -> list[str]:
    problems = []
    if not signal.needs_gradient:
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
    if flush == "all-forward" and order == "backward-first":
        problems.append(
            "flush='all-forward' with order='backward-first': a backward would begin before "
            "the last forward; use order='forward-first', or flush='alternate'"
        )
    return problems
