"""A measured training once more, as it would have been with a core for every stage."""

from collections import deque
from collections.abc import Callable

from hocket.errors import DataError
from hocket.methods.method import Method
from hocket.program import Action, dependency
from hocket.timeline.span import ACTIONS, Span
from hocket.timeline.timeline import Timeline


def replay(
    timeline: Timeline,
    method: Method,
    stages: int,
    *,
    packet_s: Callable[[Action], float] = lambda _: 0.0,
) -> Timeline:
    """The same actions in the same order at each stage, at the same time as those of others.

    An action takes as long as it took, without its waits; it begins when its stage is free and
    the packet that it takes has come. What stages that share a core, or take turns in one
    process, would do on cores of their own is computed by this.

    Args:
        timeline: Recorded from the beginning of a training, in any number of processes.
        method: The method that was recorded.
        stages: K.
        packet_s: How long what an action sends is on its way, in seconds; no time if not given.

    Raises:
        DataError: Actions wait for each other; the timeline is of another method.
    """
    queues = {stage: _actions(timeline, stage) for stage in timeline.stages}
    known = {_action(span) for queue in queues.values() for span, _ in queue}
    ends_s: dict[Action, float] = {}
    free_s = dict.fromkeys(queues, 0.0)
    spans: list[Span] = []
    while any(queues.values()):
        done = len(ends_s)
        for stage, queue in queues.items():
            while queue:
                span, took_s = queue[0]
                need = dependency(_action(span), method, stages)
                if need in known and need not in ends_s:
                    break
                queue.popleft()
                now_s = free_s[stage]
                start_s = now_s
                if need in known:
                    start_s = max(now_s, ends_s[need] + packet_s(need))
                if start_s > now_s:
                    spans.append(Span(stage, "wait", span.batch, span.tick, now_s, start_s))
                free_s[stage] = ends_s[_action(span)] = start_s + took_s
                spans.append(
                    Span(stage, span.kind, span.batch, span.tick, start_s, free_s[stage])
                )
        if len(ends_s) == done:
            first = next(queue[0][0] for queue in queues.values() if queue)
            raise DataError(
                f"{first.name} of stage {first.stage} waits for what comes after it; give the "
                f"method that was recorded, which is not {method.name!r} with these delays"
            )
    return Timeline(tuple(spans))


def _actions(timeline: Timeline, stage: int) -> deque[tuple[Span, float]]:
    """What a stage did, in order, and how long each took without waiting."""
    found: list[tuple[Span, float]] = []
    for span in timeline.spans:
        length_s = span.end_s - span.start_s
        if span.stage != stage:
            continue
        if span.kind in ACTIONS:
            found.append((span, length_s))
        elif span.kind == "wait" and found and span.start_s < found[-1][0].end_s:
            action, took_s = found[-1]
            found[-1] = action, took_s - length_s
    return deque(found)


def _action(span: Span) -> Action:
    assert span.kind in ACTIONS
    return Action(span.kind, span.stage, span.batch)  # type: ignore[arg-type]
