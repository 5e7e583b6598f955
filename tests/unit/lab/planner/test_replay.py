"""A replayed timeline has the times of stages on cores of their own."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import DataError
from hocket.methods import ADL, BP, DDG, DGL, DNI, DSP, FDG, FR
from hocket.methods.simulated.delays import with_extra_delay
from hocket.program import Action, dependency, unroll
from hocket.timeline import Span, Timeline
from hocket_lab.planner.replay import replay_timeline

METHODS = [
    BP(),
    DDG(),
    FDG(),
    with_extra_delay(FDG(), 1),
    ADL(accumulate=2),
    FR(),
    DSP(),
    DNI(),
    DGL(),
]
SECONDS = {"F": 1.0, "B": 2.0, "U": 0.0, "T": 0.5}


def in_one_process(method, stages, batches, seconds=SECONDS.__getitem__):
    """Return a timeline of all actions one after the other.

    Args:
        method: The method.
        stages: Number of stages.
        batches: Number of batches.
        seconds: Returns the duration of a kind of action.
    """
    spans, now_s = [], 100.0
    for tick, actions in enumerate(unroll(method, stages, batches)):
        for action in actions:
            end_s = now_s + seconds(action.kind)
            spans.append(Span(action.stage, action.kind, action.batch, tick, now_s, end_s))
            now_s = end_s
    return Timeline(tuple(spans))


def tick_s(timeline, batch):
    """Return the seconds between the forwards of this batch and of the next."""
    first, second = (
        s.start_s
        for s in timeline.spans
        if (s.stage, s.kind) == (0, "F") and s.batch in (batch, batch + 1)
    )
    return second - first


@pytest.mark.parametrize(
    ("method", "stages", "ticks_s"),
    [
        (BP(), 3, 9.0),  # no two stages at the same time
        (FDG(), 3, 3.0),  # all stages at the same time
        (DGL(), 4, 3.0),
        (ADL(accumulate=2), 2, 3.0),
        (DDG(), 3, 3.0),  # without a barrier, the forward lock only shifts stages
    ],
    ids=str,
)
def test_the_locks_of_a_method_set_the_length_of_a_tick(method, stages, ticks_s):
    timeline = replay_timeline(in_one_process(method, stages, 12), method, stages)
    assert tick_s(timeline, 8) == pytest.approx(ticks_s)


def test_a_fast_stage_waits_for_a_slow_one():
    """Make a forward of stage 1 as long as everything else in a tick."""

    def recorded():
        for span in in_one_process(FDG(), 2, 10).spans:
            longer_s = 2.0 if (span.stage, span.kind) == (1, "F") else 0.0
            yield Span(
                *(span.stage, span.kind, span.batch, span.tick),
                10 * span.start_s,
                10 * span.start_s + 1 + longer_s,
            )

    timeline = replay_timeline(Timeline(tuple(recorded())), FDG(), 2)
    assert tick_s(timeline, 6) == pytest.approx(5.0)  # F, B and U of stage 1
    window = timeline.window(5, 3)
    assert window.fractions()[0].waiting > 0.3
    assert window.fractions()[1].waiting == 0.0


def test_recorded_waits_are_left_out():
    spans = (
        Span(0, "F", 0, 0, 0.0, 1.0),
        Span(1, "F", 0, 1, 0.0, 4.0),
        Span(1, "wait", 0, 1, 0.5, 3.5),
        Span(1, "wait", 1, 2, 4.0, 5.0),  # outside of any action
        Span(1, "B", 0, 1, 5.0, 7.0),
    )
    assert replay_timeline(Timeline(spans), FDG(), 2).spans == (
        Span(0, "F", 0, 0, 0.0, 1.0),
        Span(1, "wait", 0, 1, 0.0, 1.0),
        Span(1, "F", 0, 1, 1.0, 2.0),
        Span(1, "B", 0, 1, 2.0, 4.0),
    )


@given(st.sampled_from(METHODS), st.integers(1, 4), st.integers(1, 6), st.randoms())
def test_no_action_begins_before_the_one_it_depends_on(method, stages, batches, rng):
    recorded = in_one_process(method, stages, batches, lambda _: rng.choice([0.25, 1.0, 3.0]))
    replayed = replay_timeline(recorded, method, stages)
    actions = {(s.kind, s.stage, s.batch): s for s in replayed.spans if s.kind != "wait"}
    assert len(actions) == len(recorded.spans)
    for (kind, stage, batch), span in actions.items():
        if (needed := dependency(Action(kind, stage, batch), method, stages)) is not None:
            assert actions[needed.kind, needed.stage, needed.batch].end_s <= span.start_s
    for stage in replayed.stages:
        spans = [s for s in replayed.spans if s.stage == stage]
        order = [(s.kind, s.batch) for s in spans if s.kind != "wait"]
        assert order == [(s.kind, s.batch) for s in recorded.spans if s.stage == stage]
        # Every gap is a wait.
        edges = chain.from_iterable((s.start_s, s.end_s) for s in spans)
        assert list(edges)[1:-1:2] == [s.start_s for s in spans][1:]
    assert replayed.length_s <= recorded.length_s + 1e-9


def test_a_timeline_of_another_method_is_refused():
    with pytest.raises(DataError, match=r"backward 0 of stage 0 waits .* not 'bp' with these"):
        replay_timeline(reordered(), BP(), 2)


def reordered():
    """Return a timeline of two stages that each begin with the last action of the other."""
    return Timeline(
        (
            Span(0, "B", 0, 0, 0.0, 1.0),
            Span(0, "F", 0, 0, 1.0, 2.0),
            Span(1, "F", 0, 0, 0.0, 1.0),
            Span(1, "B", 0, 0, 1.0, 2.0),
        )
    )
