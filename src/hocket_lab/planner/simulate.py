"""Simulation of a training from the durations of its actions, with a core for every stage.

It runs the program of the engines.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import TypeAlias

from hocket.methods.method import Method
from hocket.program.action import Action, Kind, dependency
from hocket.program.program import unroll
from hocket.timeline import Span, Timeline
from hocket.timeline.recorder import ACTION_KINDS

# Iterations after which the fractions of time in which stages overlap no longer change.
OVERLAP_ITERATIONS = 4
# Batches after which the mean of durations with jitter is known well enough.
JITTERED_BATCHES = 100

Jitter: TypeAlias = Mapping[Kind, Sequence[float]]
"""Measured durations of each kind of action, divided by their mean."""


@dataclass(frozen=True)
class StageTimes:
    """Durations of the actions of a stage for one batch, in seconds.

    Attributes:
        forward_s: A forward.
        backward_s: A backward, with the forward that it repeats if it recomputes.
        update_s: An update of the weights.
        packet_s: Transit of the output to the next stage, and of its gradient back.
        learn_s: Learning of the signal from a target.
        transfer_s: Part of the transit in which the link is taken, so that no other packet in
            the same direction can begin; the rest is latency.
    """

    forward_s: float
    backward_s: float
    update_s: float
    packet_s: float
    learn_s: float = 0.0
    transfer_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of computation for a batch, with an update."""
        return self.forward_s + self.backward_s + self.update_s + self.learn_s

    def interpolate(self, other: "StageTimes", fraction: float) -> "StageTimes":
        """Interpolate linearly: 0 returns these durations, 1 the other's.

        >>> StageTimes(1.0, 2.0, 0.5, 0.25).interpolate(
        ...     StageTimes(2.0, 4.0, 0.5, 0.25), 0.5
        ... ).backward_s
        3.0
        """
        pairs = zip(astuple(self), astuple(other), strict=True)
        return StageTimes(*(start + fraction * (end - start) for start, end in pairs))


def simulate(
    method: Method,
    times: Sequence[StageTimes],
    batches: int,
    jitter: Sequence[Jitter] | None = None,
) -> Timeline:
    """Simulate the training of a number of batches.

    The actions of each stage keep their order. An action begins when its stage is free and the
    packet that it needs has arrived.

    Args:
        method: The method.
        times: Durations of each stage.
        batches: Number of batches.
        jitter: Jitter of each stage; the duration of every action is then multiplied by a
            factor drawn from it, with a fixed seed.
    """
    stages = len(times)
    durations_s: list[dict[Kind, float]] = [
        {"F": t.forward_s, "B": t.backward_s, "U": t.update_s, "T": t.learn_s} for t in times
    ]
    rng = random.Random(0)
    arrivals_s: dict[Action, float] = {}  # of the packet of each action
    free_s = [0.0] * stages
    link_free_s: dict[tuple[Kind, int], float] = {}  # of each edge, in each direction
    spans = []
    program = enumerate(unroll(method, stages, batches))
    for tick, action in ((tick, action) for tick, actions in program for action in actions):
        kind, stage, batch = action.kind, action.stage, action.batch
        duration_s = durations_s[stage][kind]
        if jitter is not None:
            duration_s *= rng.choice(jitter[stage][kind])

        # Wait for the packet, and compute.
        now_s, needed = free_s[stage], dependency(action, method, stages)
        start_s = now_s if needed is None else max(now_s, arrivals_s.get(needed, now_s))
        if start_s > now_s:
            spans.append(Span(stage, "wait", batch, tick, now_s, start_s))
        end_s = free_s[stage] = start_s + duration_s
        spans.append(Span(stage, kind, batch, tick, start_s, end_s))

        # Send a packet, once the one before it has left the link.
        arrivals_s[action] = end_s
        edge = stage if kind == "F" else stage - 1
        if kind in "FB" and 0 <= edge < stages - 1:
            begin_s = max(end_s, link_free_s.get((kind, edge), 0.0))
            # Gradients of one tensor that are sent side by side.
            more = max(method.gradients_sent(stage, stages) - 1, 0) if kind == "B" else 0
            more_s = more * times[edge].transfer_s
            link_free_s[kind, edge] = begin_s + times[edge].transfer_s + more_s
            arrivals_s[action] = begin_s + times[edge].packet_s + more_s
    return Timeline(tuple(spans))


def tick_s(
    method: Method, times: Sequence[StageTimes], jitter: Sequence[Jitter] | None = None
) -> float:
    """Return the seconds from one batch to the next, once all stages are busy.

    Stages that wait for each other wait for the slowest at that moment, so that jitter makes
    ticks longer than the mean durations do.

    Args:
        method: The method.
        times: Durations of each stage.
        jitter: Jitter of each stage; None for constant durations.

    >>> from hocket.methods import BP, FDG
    >>> from hocket.methods.simulated.delays import with_extra_delay
    >>> stage = StageTimes(forward_s=1.0, backward_s=2.0, update_s=0.0, packet_s=0.25)
    >>> [tick_s(method, [stage] * 2) for method in (BP(), FDG(), with_extra_delay(FDG(), 1))]
    [6.5, 3.25, 3.0]
    """
    steady, batches = _batches_to_simulate(
        method, len(times), 0 if jitter is None else JITTERED_BATCHES
    )
    in_flight = batches - 2 * steady
    timeline = simulate(method, times, batches, jitter)
    starts_s = {(s.stage, s.batch): s.start_s for s in timeline.spans if s.kind == "F"}
    # The maximum over stages, as no other stage can be ahead of the slowest for long.
    return max(
        median(
            (starts_s[stage, batch + steady] - starts_s[stage, batch]) / steady
            for batch in range(in_flight, in_flight + steady)
        )
        for stage in range(len(times))
    )


def contended_times(
    method: Method, uncontended: Sequence[StageTimes], contended: Sequence[StageTimes]
) -> tuple[StageTimes, ...]:
    """Return the durations of stages that compete for memory bandwidth and caches.

    A stage takes its contended duration while all others compute, and its uncontended duration
    while they wait. The fractions of both follow from the program; simulation and interpolation
    are repeated until they agree.

    Args:
        method: The method.
        uncontended: Durations of each stage while nothing else runs.
        contended: Durations of each stage while all other stages compute.

    >>> from hocket.methods import BP, DGL
    >>> fast, slow = StageTimes(1.0, 2.0, 0.0, 0.0), StageTimes(2.0, 4.0, 0.0, 0.0)
    >>> [contended_times(m, [fast] * 2, [slow] * 2)[0].forward_s for m in (BP(), DGL())]
    [1.0, 2.0]
    """
    times = tuple(contended)
    for _ in range(OVERLAP_ITERATIONS):
        batches = _batches_to_simulate(method, len(times))[1]
        overlaps = _overlap_fractions(simulate(method, times, batches))
        times = tuple(
            fast.interpolate(slow, overlap)
            for fast, slow, overlap in zip(uncontended, contended, overlaps, strict=True)
        )
    return times


def _batches_to_simulate(method: Method, stages: int, least: int = 0) -> tuple[int, int]:
    """Return the number of batches in the steady state, and the number to simulate."""
    in_flight = method.delay(0, stages) + stages
    # Whole groups of accumulated gradients, and of batches that a stage begins in a burst
    # before it waits for a gradient.
    group = math.lcm(method.accumulate, method.batches_between(0, stages) + 1)
    steady = group * math.ceil(max(2 * in_flight + 4, least) / group)
    return steady, 2 * steady + in_flight


def _overlap_fractions(timeline: Timeline) -> list[float]:
    """Return, for each stage, the mean fraction of the others that is busy while it is.

    Only the time between the start of the last stage and the end of the first one counts.
    """
    spans = [span for span in timeline.spans if span.kind in ACTION_KINDS]
    stages = timeline.stages
    begin_s = max(min(s.start_s for s in spans if s.stage == k) for k in stages)
    end_s = min(max(s.end_s for s in spans if s.stage == k) for k in stages)
    changes = sorted(
        (min(max(time_s, begin_s), end_s), change, span.stage)
        for span in spans
        for time_s, change in ((span.start_s, 1), (span.end_s, -1))
    )
    running = dict.fromkeys(stages, 0)
    busy_s, overlap_s = dict.fromkeys(stages, 0.0), dict.fromkeys(stages, 0.0)
    previous_s = begin_s
    for time_s, change, stage in changes:
        for k in stages:
            if running[k]:
                busy_s[k] += time_s - previous_s
                overlap_s[k] += (time_s - previous_s) * (sum(map(bool, running.values())) - 1)
        previous_s = time_s
        running[stage] += change
    others = max(1, len(stages) - 1)
    return [overlap_s[k] / busy_s[k] / others if busy_s[k] else 0.0 for k in stages]
