"""A training that has not been: its program, with the times of its parts, on a core per stage.

The program is that of the engines, and the clock is `hocket.timeline.replay`, which also
computes what a recorded training would have been.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hocket.method import Method
from hocket.program import Action, unroll
from hocket.timeline import Span, Timeline
from hocket.timeline.replay import replay


@dataclass(frozen=True)
class StageTimes:
    """Seconds of each thing that a stage does to a batch.

    Attributes:
        forward_s: A forward.
        backward_s: A backward, without a forward that is done again in it.
        update_s: An update of its weights.
        packet_s: What its output takes to the next stage, and the gradient of it to get back.
    """

    forward_s: float
    backward_s: float
    update_s: float
    packet_s: float

    @property
    def total_s(self) -> float:
        """Forward, backward and update."""
        return self.forward_s + self.backward_s + self.update_s


def simulate(method: Method, times: Sequence[StageTimes], batches: int) -> Timeline:
    """What all stages would do, from when to when, for so many batches.

    A recomputed stage forwards again in its backward. A signal that learns from targets is
    taken to do so in no time, and so are networks of signals.
    """
    stages = len(times)
    now_s = 0.0
    spans = []
    for tick, actions in enumerate(unroll(method, stages, batches)):
        for action in actions:
            end_s = now_s + _seconds(action, method, times)
            spans.append(Span(action.stage, action.kind, action.batch, tick, now_s, end_s))
            now_s = end_s

    def packet_s(sent: Action) -> float:
        edge = sent.stage if sent.kind == "F" else sent.stage - 1
        return times[edge].packet_s

    return replay(Timeline(tuple(spans)), method, stages, packet_s=packet_s)


def tick_s(method: Method, times: Sequence[StageTimes]) -> float:
    """Seconds from one batch to the next, once all stages are at work.

    >>> from hocket.methods import BP, FDG
    >>> stage = StageTimes(forward_s=1.0, backward_s=2.0, update_s=0.0, packet_s=0.25)
    >>> [tick_s(method, [stage] * 2) for method in (BP(), FDG(), FDG().slackened(1))]
    [6.5, 3.25, 3.0]
    """
    flight = method.delay(0, len(times)) + len(times)
    group = method.accumulate
    # Whole groups of accumulated gradients, from when all stages have long been at work.
    steady = group * -(-(2 * flight + 4) // group)
    timeline = simulate(method, times, 2 * steady + flight)
    begun = {(s.stage, s.batch): s.start_s for s in timeline.spans if s.kind == "F"}
    # The slowest stage, as no other can be ahead of it for long.
    return max(
        median(
            (begun[stage, batch + steady] - begun[stage, batch]) / steady
            for batch in range(flight, flight + steady)
        )
        for stage in range(len(times))
    )


def _seconds(action: Action, method: Method, times: Sequence[StageTimes]) -> float:
    mine = times[action.stage]
    again = method.linearize == "recompute" and method.delay(action.stage, len(times)) > 0
    return {
        "F": mine.forward_s,
        "B": mine.backward_s + (mine.forward_s if again else 0.0),
        "U": mine.update_s,
        "T": 0.0,
    }[action.kind]
