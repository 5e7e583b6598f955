"""What a timeline becomes when every stage has a core of its own."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import DataError
from hocket.methods import ADL, BP, DDG, DGL, DNI, DSP, FDG, FR
from hocket.planner.replay import replay
from hocket.program import Action, dependency, unroll
from hocket.timeline import Span, Timeline

METHODS = [
    BP(),
    DDG(),
    FDG(),
    FDG().with_extra_delay(1),
    ADL(accumulate=2),
    FR(),
    DSP(),
    DNI(),
    DGL(),
]
SECONDS = {"F": 1.0, "B": 2.0, "U": 0.0, "T": 0.5}


def in_one_process(method, stages, batches, seconds=SECONDS.__getitem__):
    """All actions one after the other."""
    spans, now_s = [], 100.0
    for tick, actions in enumerate(unroll(method, stages, batches)):
        for action in actions:
            end_s = now_s + seconds(action.kind)
            spans.append(Span(action.stage, action.kind, action.batch, tick, now_s, end_s))
            now_s = end_s
    return Timeline(tuple(spans))


def tick_s(timeline, batch):
    """Between the forwards of this batch and of the next."""
    first, second = (
        s.start_s
        for s in timeline.spans
        if (s.stage, s.kind) == (0, "F") and s.batch in (batch, batch + 1)
    )
    return second - first


@pytest.mark.parametrize(
    ("method", "stages", "ticks_s"),
    [
        (BP(), 3, 9.0),  # nothing at the same time
        (FDG(), 3, 3.0),  # all at the same time
        (DGL(), 4, 3.0),
        (ADL(accumulate=2), 2, 3.0),
        (DDG(), 3, 3.0),  # no barrier ends a tick, so that its forward lock only shifts stages
    ],
    ids=str,
)
def test_equal_stages_take_what_their_locks_leave(method, stages, ticks_s):
    timeline = replay(in_one_process(method, stages, 12), method, stages)
    assert tick_s(timeline, 8) == pytest.approx(ticks_s)


def test_who_is_quick_waits_for_who_is_slow():
    """One forward of stage 1 takes as long as all else of a tick."""

    def recorded():
        for span in in_one_process(FDG(), 2, 10).spans:
            longer_s = 2.0 if (span.stage, span.kind) == (1, "F") else 0.0
            yield Span(*vars_of(span)[:4], 10 * span.start_s, 10 * span.start_s + 1 + longer_s)

    timeline = replay(Timeline(tuple(recorded())), FDG(), 2)
    assert tick_s(timeline, 6) == pytest.approx(5.0)  # F, B and U of stage 1
    window = timeline.window(5, 3)
    assert window.fractions()[0].waiting > 0.3
    assert window.fractions()[1].waiting == 0.0


def vars_of(span):
    return span.stage, span.kind, span.batch, span.tick, span.start_s, span.end_s


def test_waits_that_were_recorded_are_left_out():
    spans = (
        Span(0, "F", 0, 0, 0.0, 1.0),
        Span(1, "F", 0, 1, 0.0, 4.0),
        Span(1, "wait", 0, 1, 0.5, 3.5),
        Span(1, "wait", 1, 2, 4.0, 5.0),  # outside of any action
        Span(1, "B", 0, 1, 5.0, 7.0),
    )
    assert replay(Timeline(spans), FDG(), 2).spans == (
        Span(0, "F", 0, 0, 0.0, 1.0),
        Span(1, "wait", 0, 1, 0.0, 1.0),
        Span(1, "F", 0, 1, 1.0, 2.0),
        Span(1, "B", 0, 1, 2.0, 4.0),
    )


@given(st.sampled_from(METHODS), st.integers(1, 4), st.integers(1, 6), st.randoms())
def test_nothing_begins_before_what_it_needs(method, stages, batches, chance):
    one = in_one_process(method, stages, batches, lambda _: chance.choice([0.25, 1.0, 3.0]))
    many = replay(one, method, stages)
    actions = {(s.kind, s.stage, s.batch): s for s in many.spans if s.kind != "wait"}
    assert len(actions) == len(one.spans)
    for (kind, stage, batch), span in actions.items():
        if (need := dependency(Action(kind, stage, batch), method, stages)) is not None:
            assert actions[need.kind, need.stage, need.batch].end_s <= span.start_s
    for stage in many.stages:
        mine = [s for s in many.spans if s.stage == stage]
        order = [(s.kind, s.batch) for s in mine if s.kind != "wait"]
        assert order == [(s.kind, s.batch) for s in one.spans if s.stage == stage]
        # No gap that is not a wait.
        edges = chain.from_iterable((s.start_s, s.end_s) for s in mine)
        assert list(edges)[1:-1:2] == [s.start_s for s in mine][1:]
    assert many.length_s <= one.length_s + 1e-9


def test_a_timeline_of_another_method_is_refused():
    with pytest.raises(DataError, match=r"backward 0 of stage 0 waits .* not 'bp' with these"):
        replay(reordered(), BP(), 2)


def reordered():
    """Two stages each of which begins with what the other one does last."""
    return Timeline(
        (
            Span(0, "B", 0, 0, 0.0, 1.0),
            Span(0, "F", 0, 0, 1.0, 2.0),
            Span(1, "F", 0, 0, 0.0, 1.0),
            Span(1, "B", 0, 0, 1.0, 2.0),
        )
    )
