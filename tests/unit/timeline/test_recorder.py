"""The totals of a recorder are those of the timeline of its spans."""

from itertools import count, pairwise

import pytest
from hypothesis import given

from hocket.timeline import Recorder, Timeline, Totals
from unit.timeline.timelines import build_timeline, recordings


class Clock:
    """Clock that returns the seconds it was set to."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_wait_inside_a_backward_is_not_busy():
    clock = Clock()
    recorder = Recorder(2, clock=clock)
    with recorder.span("B", batch=7, tick=9):
        clock.now_s = 0.002
        with recorder.span("wait", batch=7, tick=9):
            clock.now_s = 0.005
            with recorder.span("send", batch=6, tick=9):
                clock.now_s = 0.006
        assert recorder.totals.waiting_s == pytest.approx(0.003), "read during a span"
        assert recorder.totals.busy_s == 0.0
        clock.now_s = 0.010
    assert recorder.totals.busy_s == pytest.approx(0.006)
    assert recorder.totals.waiting_s == pytest.approx(0.003)
    assert recorder.totals.communication_s == pytest.approx(0.001)
    spans = [(s.stage, s.kind, s.batch, s.tick, s.start_s, s.end_s) for s in recorder.spans]
    assert spans == [
        (2, "send", 6, 9, 0.005, 0.006),
        (2, "wait", 7, 9, 0.002, 0.006),
        (2, "B", 7, 9, 0.0, 0.010),
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
