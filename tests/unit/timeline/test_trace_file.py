"""A timeline is written and read without loss, in a format of Perfetto and chrome://tracing."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from hocket.errors import DataError, OptionError
from hocket.timeline import Span, Timeline
from hocket.timeline.trace_file import read_trace, write_trace
from unit.timeline.timelines import build_timeline, recordings, simulated_fdg


@pytest.fixture
def file(tmp_path):
    return tmp_path / "timeline.json"


def write_events(timeline, file):
    timeline.write(file)
    return json.loads(file.read_text())["traceEvents"]


@given(recordings())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_timeline_is_read_as_it_was_written(file, recorders):
    timeline = build_timeline(recorders)
    timeline.write(file)
    assert Timeline.read(file) == timeline


def test_times_are_kept_to_a_nanosecond(file):
    simulated_fdg(forward_s=1 / 3).write(file)
    read = Timeline.read(file)
    for before, after in zip(simulated_fdg(forward_s=1 / 3).spans, read.spans, strict=True):
        assert after.start_s == pytest.approx(before.start_s, abs=0.6e-9)
        assert after.end_s == pytest.approx(before.end_s, abs=0.6e-9)
    read.write(file)
    assert Timeline.read(file) == read


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


def test_a_file_that_cannot_be_written_whole_is_as_it_was(tmp_path, monkeypatch):
    file, write_text = tmp_path / "t.json", Path.write_text
    simulated_fdg().write(file)
    before = file.read_bytes()

    def write_half(path, text, **options):
        write_text(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_half)
    for place, said in ((file, "No space left"), (tmp_path / "none/t.json", "none.t.json")):
        with pytest.raises(OptionError, match=f"cannot write the timeline .*{said}"):
            simulated_fdg().write(place)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


# Files of other programs, and damaged ones.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it has no mark 'hocket timeline 1'"),
        (b"{}", "it has no mark 'hocket timeline 1'"),
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
        (None, "forward", "event 3: found 'forward'; wanted an object"),
        ("ph", "B", "event 3: found .* wanted an object with ph 'X' and args"),
        ("args", None, "wanted an object with ph 'X' and args"),
        ("args", {"tick": 1}, "event 3: batch is None"),
        ("pid", "one", "pid is 'one'"),
        ("pid", True, "pid is True"),
        ("pid", 10**400, "pid is 1000"),
        ("ts", None, "ts is None"),
        ("ts", float("nan"), "ts is nan"),
        ("dur", float("inf"), "dur is inf"),
        ("cat", 3, "cat is 3"),
        ("cat", "Q", "the kind is 'Q'"),
    ],
)
def test_a_damaged_event_is_named(field, value, message, file):
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


def test_a_pipe_and_ten_thousand_stages_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_trace(tmp_path / "pipe")
    spans = [Span(stage, "F", 0, 0, 0.0, 1.0) for stage in range(1025)]
    write_trace(tmp_path / "wide.json", spans, [])
    with pytest.raises(DataError, match="1025 stages"):
        read_trace(tmp_path / "wide.json")
