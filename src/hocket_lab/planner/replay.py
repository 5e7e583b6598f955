"""Replay of a recorded timeline, as it would be with a core for every stage."""

from collections import deque
from collections.abc import Callable

from hocket.errors import DataError
from hocket.methods.method import Method
from hocket.program.action import Action, dependency
from hocket.timeline.recorder import ACTION_KINDS, Span
from hocket.timeline.timeline import Timeline


def replay_timeline(
    timeline: Timeline,
    method: Method,
    stages: int,
    *,
    arrive_s: Callable[[Action, float], float] = lambda _, sent_s: sent_s,
) -> Timeline:
    """Schedule the recorded actions of all stages in parallel.

    The actions of each stage keep their order and their durations without waits. An action
    begins when its stage is free and the packet that it needs has arrived. So the timeline of
    stages that share a core, or take turns in one process, becomes one of stages on separate
    cores.

    Args:
        timeline: Recorded from the beginning of a training, in any number of processes.
        method: The method that was recorded.
        stages: Number of stages K.
        arrive_s: Returns the time at which the packet of an action arrives that was sent at a
            time; at once by default. Packets of a stage come in the order in which they are
            sent.

    Raises:
        DataError: Actions wait for each other, because the timeline is of another method.
    """
    queues = {stage: _stage_actions(timeline, stage) for stage in timeline.stages}
    recorded = {_action(span) for queue in queues.values() for span, _ in queue}
    arrivals_s: dict[Action, float] = {}
    free_s = dict.fromkeys(queues, 0.0)
    spans: list[Span] = []
    while any(queues.values()):
        done = len(arrivals_s)
        for stage, queue in queues.items():
            while queue:
                span, duration_s = queue[0]
                needed = dependency(_action(span), method, stages)
                if needed in recorded and needed not in arrivals_s:
                    break
                queue.popleft()
                now_s = free_s[stage]
                start_s = now_s
                if needed in recorded:
                    start_s = max(now_s, arrivals_s[needed])
                if start_s > now_s:
                    spans.append(Span(stage, "wait", span.batch, span.tick, now_s, start_s))
                free_s[stage] = start_s + duration_s
                arrivals_s[_action(span)] = arrive_s(_action(span), free_s[stage])
                spans.append(
                    Span(stage, span.kind, span.batch, span.tick, start_s, free_s[stage])
                )
        if len(arrivals_s) == done:
            first = next(queue[0][0] for queue in queues.values() if queue)
            raise DataError(
                f"{first.name} of stage {first.stage} waits for an action that comes after it; "
                f"give the method that was recorded, which is not {method.name!r} with these "
                "delays"
            )
    return Timeline(tuple(spans))


def _stage_actions(timeline: Timeline, stage: int) -> deque[tuple[Span, float]]:
    """Return the actions of a stage in order, and their seconds without waits."""
    actions: list[tuple[Span, float]] = []
    for span in timeline.spans:
        duration_s = span.end_s - span.start_s
        if span.stage != stage:
            continue
        if span.kind in ACTION_KINDS:
            actions.append((span, duration_s))
        elif span.kind == "wait" and actions and span.start_s < actions[-1][0].end_s:
            action, working_s = actions[-1]
            actions[-1] = action, working_s - duration_s
    return deque(actions)


def _action(span: Span) -> Action:
    assert span.kind in ACTION_KINDS
    return Action(span.kind, span.stage, span.batch)  # type: ignore[arg-type]
