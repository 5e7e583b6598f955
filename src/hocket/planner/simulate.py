"""A training that has not been: its program, with the times of its parts, on a core per stage.

The program is that of the engines, and the clock is `hocket.planner.replay`, which also
computes what a recorded training would have been.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import TypeAlias

from hocket.methods.method import Method
from hocket.planner.replay import replay
from hocket.program import Action, Kind, unroll
from hocket.timeline import Span, Timeline
from hocket.timeline.span import ACTIONS

# Until the shares of time that stages work together no longer change.
ROUNDS = 4
# Until the mean of times that vary is known well enough.
VARIED = 100

Jitter: TypeAlias = Mapping[Kind, Sequence[float]]
"""Of each kind of action: single times over their mean."""


@dataclass(frozen=True)
class StageTimes:
    """Seconds of each thing that a stage does to a batch.

    Attributes:
        forward_s: A forward.
        backward_s: A backward, with a forward that is done again in it.
        update_s: An update of its weights.
        packet_s: What its output takes to the next stage, and the gradient of it to get back.
        learn_s: What its signal takes to learn from a target.
    """

    forward_s: float
    backward_s: float
    update_s: float
    packet_s: float
    learn_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All that it does to a batch, with an update."""
        return self.forward_s + self.backward_s + self.update_s + self.learn_s

    def between(self, other: "StageTimes", share: float) -> "StageTimes":
        """Times that are such a share of the way to others.

        >>> StageTimes(1.0, 2.0, 0.5, 0.25).between(StageTimes(2.0, 4.0, 0.5, 0.25), 0.5)
        StageTimes(forward_s=1.5, backward_s=3.0, update_s=0.5, packet_s=0.25, learn_s=0.0)
        """
        pairs = zip(astuple(self), astuple(other), strict=True)
        return StageTimes(*(mine + share * (theirs - mine) for mine, theirs in pairs))


def simulate(
    method: Method,
    times: Sequence[StageTimes],
    batches: int,
    jitter: Sequence[Jitter] | None = None,
) -> Timeline:
    """What all stages would do, from when to when, for so many batches.

    Args:
        method: The method.
        times: Of each stage.
        batches: How many.
        jitter: Of each stage; each action then takes its time times one of these, drawn by
            chance and always the same.
    """
    stages = len(times)
    chance = random.Random(0)
    now_s = 0.0
    spans = []
    for tick, actions in enumerate(unroll(method, stages, batches)):
        for action in actions:
            took_s = _seconds(action, times)
            if jitter is not None:
                took_s *= chance.choice(jitter[action.stage][action.kind])
            end_s = now_s + took_s
            spans.append(Span(action.stage, action.kind, action.batch, tick, now_s, end_s))
            now_s = end_s

    def packet_s(sent: Action) -> float:
        edge = sent.stage if sent.kind == "F" else sent.stage - 1
        return times[edge].packet_s

    return replay(Timeline(tuple(spans)), method, stages, packet_s=packet_s)


def tick_s(
    method: Method, times: Sequence[StageTimes], jitter: Sequence[Jitter] | None = None
) -> float:
    """Seconds from one batch to the next, once all stages are at work.

    Stages that wait for each other wait for the one that is slow at the moment, so that times
    that vary make a tick longer than their means do: give the jitter of each stage.

    >>> from hocket.methods import BP, FDG
    >>> stage = StageTimes(forward_s=1.0, backward_s=2.0, update_s=0.0, packet_s=0.25)
    >>> [tick_s(method, [stage] * 2) for method in (BP(), FDG(), FDG().with_extra_delay(1))]
    [6.5, 3.25, 3.0]
    """
    steady, batches = _enough(method, len(times), 0 if jitter is None else VARIED)
    flight = batches - 2 * steady
    timeline = simulate(method, times, batches, jitter)
    begun = {(s.stage, s.batch): s.start_s for s in timeline.spans if s.kind == "F"}
    # The slowest stage, as no other can be ahead of it for long.
    return max(
        median(
            (begun[stage, batch + steady] - begun[stage, batch]) / steady
            for batch in range(flight, flight + steady)
        )
        for stage in range(len(times))
    )


def shared(
    method: Method, alone: Sequence[StageTimes], company: Sequence[StageTimes]
) -> tuple[StageTimes, ...]:
    """Times of stages that take from each other what they share, such as memory and caches.

    A stage is as slow as in company while all others work, and as quick as alone while they
    wait. How much of its time is which follows from the program; it is simulated until both
    agree.

    Args:
        method: The method.
        alone: Times of each stage by itself.
        company: The same while as many others compute as there are other stages.

    >>> from hocket.methods import BP, DGL
    >>> one, other = StageTimes(1.0, 2.0, 0.0, 0.0), StageTimes(2.0, 4.0, 0.0, 0.0)
    >>> [shared(m, [one] * 2, [other] * 2)[0].forward_s for m in (BP(), DGL())]
    [1.0, 2.0]
    """
    times = tuple(company)
    for _ in range(ROUNDS):
        shares = _overlaps(simulate(method, times, _enough(method, len(times))[1]))
        times = tuple(
            one.between(other, share)
            for one, other, share in zip(alone, company, shares, strict=True)
        )
    return times


def _enough(method: Method, stages: int, least: int = 0) -> tuple[int, int]:
    """After how many batches all stages are at work for long, and how many to simulate."""
    flight = method.delay(0, stages) + stages
    group = method.accumulate
    # Whole groups of accumulated gradients.
    steady = group * -(-max(2 * flight + 4, least) // group)
    return steady, 2 * steady + flight


def _overlaps(timeline: Timeline) -> list[float]:
    """For each stage, which part of the others is at work while it is, from 0 to 1.

    Counted from when all have begun to when the first one ends.
    """
    spans = [span for span in timeline.spans if span.kind in ACTIONS]
    stages = timeline.stages
    begin_s = max(min(s.start_s for s in spans if s.stage == k) for k in stages)
    end_s = min(max(s.end_s for s in spans if s.stage == k) for k in stages)
    edges = sorted(
        (min(max(at_s, begin_s), end_s), change, span.stage)
        for span in spans
        for at_s, change in ((span.start_s, 1), (span.end_s, -1))
    )
    busy = dict.fromkeys(stages, 0)
    own_s, shared_s = dict.fromkeys(stages, 0.0), dict.fromkeys(stages, 0.0)
    before_s = begin_s
    for at_s, change, stage in edges:
        for k in stages:
            if busy[k]:
                own_s[k] += at_s - before_s
                shared_s[k] += (at_s - before_s) * (sum(map(bool, busy.values())) - 1)
        before_s = at_s
        busy[stage] += change
    others = max(1, len(stages) - 1)
    return [shared_s[k] / own_s[k] / others if own_s[k] else 0.0 for k in stages]


def _seconds(action: Action, times: Sequence[StageTimes]) -> float:
    mine = times[action.stage]
    return {
        "F": mine.forward_s,
        "B": mine.backward_s,
        "U": mine.update_s,
        "T": mine.learn_s,
    }[action.kind]
