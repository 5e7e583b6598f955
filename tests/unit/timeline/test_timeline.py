"""A timeline is a value: its totals, its windows, and spans that are refused.

The totals of a recorder are those of the timeline of its spans.
"""

import math
from itertools import count, pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given

from hocket.errors import DataError, OptionError
from hocket.timeline import Fractions, Recorder, Span, Timeline, Totals
from unit.timeline.timelines import build_timeline, recordings, simulated_fdg


def span(kind, start_s, end_s, *, stage=0, batch=0, tick=0):
    """Return a span of some seconds."""
    return Span(stage, kind, batch, tick, start_s, end_s)


def test_fractions_refer_to_the_whole_timeline():
    timeline = Timeline(
        (
            span("F", 10.0, 11.0),
            span("send", 11.0, 11.5),
            span("B", 12.0, 16.0),
            span("wait", 13.0, 15.0),  # inside the backward
            span("U", 16.0, 17.0),
            span("wait", 15.0, 18.0, stage=1),
            span("F", 18.0, 20.0, stage=1),
        )
    )
    assert timeline.length_s == 10
    assert timeline.stages == (0, 1)
    assert timeline.fractions() == {
        0: Fractions(busy=0.4, communication=0.05, waiting=0.2),
        1: Fractions(busy=0.2, communication=0.0, waiting=0.3),
    }


def test_an_empty_timeline_has_no_length_and_a_wait_may_fill_its_action():
    assert Timeline(()).length_s == 0
    assert Timeline(()).fractions() == {}
    assert Timeline((span("U", 1, 1),)).fractions() == {0: Fractions(0, 0, 0)}
    for spans in ((span("B", 0, 1), span("wait", 0, 1)), (span("wait", 0, 1), span("B", 0, 1))):
        assert Timeline(spans).totals() == {0: Totals(0, 0, 1)}


# Windows.


def test_a_window_spans_from_the_first_action_of_a_batch_to_the_last_of_another():
    whole = simulated_fdg(stages=3, batches=12)
    part = whole.window(first=4, batches=3)
    (first,) = (s for s in whole.spans if (s.kind, s.stage, s.batch) == ("F", 0, 4))
    (last,) = (s for s in whole.spans if (s.kind, s.stage, s.batch) == ("U", 0, 6))
    assert part.spans[0].start_s == first.start_s
    assert part.length_s == pytest.approx(last.end_s - first.start_s)
    # Other batches are in flight at the same time; they are included where they overlap.
    assert {0, 11} & set(part.batches) == set()
    assert {3, 4, 5, 6, 7} <= set(part.batches)


def test_a_window_truncates_spans_at_its_ends():
    timeline = Timeline(
        (
            span("F", 1, 3, batch=0),
            span("B", 0, 2, batch=9, stage=1),
            span("wait", 1.5, 4, batch=0, stage=2),
            span("wait", 3, 8, batch=9),
        )
    )
    times = {(s.stage, s.start_s, s.end_s) for s in timeline.window(0, 1).spans}
    assert times == {(0, 1, 3), (1, 1, 2), (2, 1.5, 3)}


def test_a_window_begins_with_an_existing_batch_and_may_ask_for_more_than_there_are():
    timeline = simulated_fdg(batches=4)
    assert timeline.window() == timeline.window(0, 4) == timeline.window(batches=100)
    assert timeline.window(3).batches[-1] == 3
    for first in (-1, 4, 100):
        with pytest.raises(OptionError, match=f"has no batch {first}; choose one of 0 to 3"):
            timeline.window(first)
    with pytest.raises(OptionError, match="has no batches"):
        Timeline((span("wait", 0, 1),)).window()


# Invalid timelines.


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        (span("X", 0, 1), r"X 0 of stage 0, 0 s to 1 s: the kind is 'X'; wanted one of F, B"),
        (span("F", 2, 1), r"forward 0 of stage 0, 2 s to 1 s: it must end after it starts"),
        (span("F", math.nan, 1), "it must end after it starts"),
        (span("F", 0, math.inf), "it must end after it starts"),
        (span("F", 0, 1, stage=-1), "forward 0 of stage -1, .* counted from 0"),
        (span("F", 0, 1, batch=-1), "one of them is negative"),
        (span("F", 0, 1, tick=-1), "one of them is negative"),
        (span("B", 0.5, 3), "backward 0 of stage 0, 0.5 s to 3 s: overlaps forward 0"),
    ],
)
def test_an_invalid_span_is_refused(invalid, message):
    with pytest.raises(DataError, match=message):
        Timeline((span("F", 0, 1), invalid))
    assert Timeline((span("F", 0, 1), span("B", 0.5, 3, stage=1))).stages == (0, 1)


def test_of_many_problems_the_first_are_listed():
    with pytest.raises(DataError, match="not a timeline") as caught:
        Timeline((span("F", 2, 1),) * 100)
    assert len(str(caught.value).splitlines()) == 6


# What a recorder has recorded.


def test_totals_may_be_read_during_a_span():
    clock = SimpleNamespace(now_s=0.0)
    recorder = Recorder(2, clock=lambda: clock.now_s)
    with recorder.span("B", batch=7, tick=9):
        clock.now_s = 2.0
        with recorder.span("wait", batch=7, tick=9):
            clock.now_s = 5.0
        assert recorder.totals == Totals(0.0, 0.0, 3.0)
    assert [(s.stage, s.kind, s.batch, s.tick) for s in recorder.spans] == [
        (2, "wait", 7, 9),
        (2, "B", 7, 9),
    ]


def test_without_spans_the_totals_are_the_same():
    kept, light = (Recorder(0, keep=keep, clock=count().__next__) for keep in (True, False))
    for recorder in (kept, light):
        for batch in range(3):
            with recorder.span("F", batch, batch), recorder.span("send", batch, batch):
                pass
    assert light.totals == kept.totals == Totals(6.0, 3.0, 0.0)
    assert len(kept.spans) == 6
    assert light.spans == ()


def test_an_exception_ends_a_span():
    recorder = Recorder(0, clock=count().__next__)
    with pytest.raises(ZeroDivisionError), recorder.span("F", 0, 0), recorder.span("U", 0, 0):
        raise ZeroDivisionError
    with recorder.span("F", 1, 1):
        pass
    assert [span.name for span in recorder.spans] == ["update 0", "forward 0", "forward 1"]
    assert recorder.totals.busy_s == 4.0


@given(recordings())
def test_the_recorder_and_its_timeline_agree_and_pieces_follow_each_other(recorders):
    timeline = build_timeline(recorders)
    totals = timeline.totals()
    for recorder in recorders:
        expected = totals.get(recorder.stage, Totals(0.0, 0.0, 0.0))
        for name, spent_s in vars(recorder.totals).items():
            assert getattr(expected, name) == pytest.approx(spent_s, abs=1e-12)
    for parts in timeline.fractions().values():
        assert 0 <= parts.busy + parts.communication + parts.waiting <= 1 + 1e-9
    flat = timeline.flatten()
    for stage in flat.stages:
        pieces = [span for span in flat.spans if span.stage == stage]
        assert all(a.end_s <= b.start_s for a, b in pairwise(pieces))
    assert flat.flatten() == flat
    assert Timeline(tuple(reversed(flat.spans))) == flat
