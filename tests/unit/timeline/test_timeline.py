"""A timeline is a value: its seconds, its windows, and spans that are refused.

The seconds of a recorder are those of the timeline of its spans.
"""

import json
from itertools import count, pairwise
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings

from hocket.errors import DataError, OptionError
from hocket.timeline import Fractions, Recorder, Span, Timeline
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
        assert Timeline(spans).fractions() == {0: Fractions(0, 0, 1)}


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
    with pytest.raises(OptionError, match="batches is 0; use at least 1"):
        timeline.window(0, 0)
    with pytest.raises(OptionError, match="has no batches"):
        Timeline((span("wait", 0, 1),)).window()


# What a recorder has recorded.


def test_seconds_may_be_read_during_a_span():
    clock = SimpleNamespace(now_s=0.0)
    recorder = Recorder(2, clock=lambda: clock.now_s)
    with recorder.span("B", batch=7, tick=9):
        clock.now_s = 2.0
        with recorder.span("wait", batch=7, tick=9):
            clock.now_s = 5.0
        assert Fractions.of(recorder.seconds, 3.0) == Fractions(0.0, 0.0, 1.0)
    assert [(s.stage, s.kind, s.batch, s.tick) for s in recorder.spans] == [
        (2, "wait", 7, 9),
        (2, "B", 7, 9),
    ]


def test_without_spans_the_seconds_are_the_same():
    kept, light = (Recorder(0, keep=keep, clock=count().__next__) for keep in (True, False))
    for recorder in (kept, light):
        for batch in range(3):
            with recorder.span("F", batch, batch), recorder.span("send", batch, batch):
                pass
    assert light.seconds == kept.seconds
    assert (light.seconds["F"], light.seconds["send"]) == (6.0, 3.0)
    assert len(kept.spans) == 6
    assert light.spans == ()


def test_an_exception_ends_a_span():
    recorder = Recorder(0, clock=count().__next__)
    with pytest.raises(ZeroDivisionError), recorder.span("F", 0, 0), recorder.span("U", 0, 0):
        raise ZeroDivisionError
    with recorder.span("F", 1, 1):
        pass
    assert [span.name for span in recorder.spans] == ["update 0", "forward 0", "forward 1"]
    assert sum(recorder.seconds.values()) == 4.0


@given(recordings())
def test_the_recorder_and_its_timeline_agree_and_pieces_follow_each_other(recorders):
    timeline = build_timeline(recorders)
    seconds = timeline.seconds()
    for recorder in recorders:
        expected = seconds.get(recorder.stage, dict.fromkeys(recorder.seconds, 0.0))
        assert expected == pytest.approx(recorder.seconds, abs=1e-12)
    for parts in timeline.fractions().values():
        assert 0 <= parts.busy + parts.communication + parts.waiting <= 1 + 1e-9
    flat = timeline.flatten()
    for stage in flat.stages:
        pieces = [span for span in flat.spans if span.stage == stage]
        assert all(a.end_s <= b.start_s for a, b in pairwise(pieces))
    assert flat.flatten() == flat
    assert Timeline(tuple(reversed(flat.spans))) == flat


# It is written and read without loss, in a format of Perfetto and chrome://tracing.


@pytest.fixture
def file(tmp_path):
    return tmp_path / "timeline.json"


def write_events(timeline, file):
    timeline.write(file)
    return json.loads(file.read_text())["traceEvents"]


@given(recordings())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_timeline_is_read_as_it_was_written(file, recorders):
    """To a nanosecond, of which the clock of these recorders has a whole number."""
    timeline = build_timeline(recorders)
    timeline.write(file)
    assert Timeline.read(file) == timeline


def test_every_span_is_a_complete_event_of_its_stage_after_which_its_row_is_named(file):
    timeline = simulated_fdg()
    written = write_events(timeline, file)
    events = [event for event in written if event["ph"] == "X"]
    assert len(events) == len(timeline.spans)
    for event, span in zip(events, timeline.spans, strict=True):
        assert event["pid"] == event["tid"] == span.stage
        assert event["ts"] == pytest.approx(span.start_s * 1e6, abs=1e-3)
        assert event["dur"] == pytest.approx((span.end_s - span.start_s) * 1e6, abs=1e-3)
        assert event["name"] == span.name
        assert event["args"] == {"batch": span.batch, "tick": span.tick}
    assert "forward 7" in {event["name"] for event in events}
    titles = [event for event in written if event["ph"] == "M"]
    for k in range(3):
        names = {e["name"]: e["args"] for e in titles if e["pid"] == e["tid"] == k}
        title = {"name": f"stage {k}"}
        assert names == {"process_name": title, "thread_name": title}


def arrows(events):
    """Return the name, and the stage and time of both ends, of each arrow."""
    ends = {phase: {e["id"]: e for e in events if e["ph"] == phase} for phase in "sf"}
    assert ends["s"].keys() == ends["f"].keys()
    return [
        (start["name"], (start["pid"], start["ts"]), (end["pid"], end["ts"]))
        for start, end in ((ends["s"][number], ends["f"][number]) for number in ends["s"])
    ]


def test_arrows_lead_from_the_sender_to_the_receiver_of_a_packet(file):
    events = write_events(simulated_fdg(stages=3, batches=8), file)
    drawn = arrows(events)
    assert sorted(name for name, *_ in drawn) == ["activation"] * 16 + ["gradient"] * 16
    for name, (start, leaves), (stop, arrives) in drawn:
        assert stop - start == (1 if name == "activation" else -1)
        assert leaves <= arrives
        kind = "F" if name == "activation" else "B"
        for stage, time in ((start, leaves), (stop, arrives)):
            assert [
                event["name"]
                for event in events
                if event.get("cat") == kind
                and event["pid"] == stage
                and event["ts"] <= time < event["ts"] + event["dur"]
            ], "the arrow binds to an action"


def test_an_arrow_arrives_after_the_wait_inside_an_action(file):
    backwards = (Span(1, "B", 0, 0, 2.0, 4.0), Span(0, "B", 0, 0, 1.0, 6.0))
    wait = Span(0, "wait", 0, 0, 1.5, 4.5)
    ((name, (_, leaves), (_, arrives)),) = arrows(
        write_events(Timeline((*backwards, wait)), file)
    )
    assert (name, leaves, arrives) == ("gradient", pytest.approx(4e6, abs=0.01), 4.5e6)
    spans = (Span(1, "B", 0, 1, 2.0, 3.0), Span(0, "T", 0, 2, 3.5, 4.0))
    assert [name for name, *_ in arrows(write_events(Timeline(spans), file))] == ["target"]
    # Without the wait the backward began before there was a gradient to receive.
    assert arrows(write_events(Timeline(backwards), file)) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OptionError, match=r"cannot write the timeline .*none.t.json"):
        simulated_fdg().write(tmp_path / "none/t.json")


# Files of other programs, and damaged ones.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it has no mark 'hocket timeline 1'"),
        (b'{"traceEvents": [{"ph": "X", "name": "aten::add"}]}', "it has no mark"),
        (b'{"otherData": {"format": "hocket timeline 1"}}', "it has no list of traceEvents"),
    ],
)
def test_other_files_are_refused(content, message, file):
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=rf"timeline .*timeline\.json.*{message}"):
        Timeline.read(file)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (None, "forward", "damaged .TypeError"),
        ("args", None, "damaged .TypeError"),
        ("args", {"tick": 1}, "damaged .KeyError: 'batch'"),
        ("args", {"tick": 1, "batch": "3"}, "damaged .TypeError"),
        ("args", {"tick": 0.5, "batch": 3}, "damaged .TypeError"),
        ("pid", "0", "damaged .TypeError"),
        ("ts", None, "damaged .TypeError"),
        ("ts", float("nan"), "damaged .ValueError"),
        ("dur", float("inf"), "damaged .OverflowError"),
        ("cat", "Q", "damaged .ValueError"),
    ],
)
def test_a_damaged_event_is_refused(field, value, message, file):
    Timeline((Span(0, "F", 3, 4, 0.0, 1.0), Span(0, "B", 3, 4, 1.0, 2.0))).write(file)
    content = json.loads(file.read_text())
    (at,) = [n for n, event in enumerate(content["traceEvents"]) if event.get("cat") == "B"]
    event = content["traceEvents"][at]
    content["traceEvents"][at] = event | {field: value} if field else value
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        Timeline.read(file)
    assert "timeline.json'" in str(caught.value)
    assert "record it again" in str(caught.value)
