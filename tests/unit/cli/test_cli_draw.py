"""`hocket draw --timeline`: a measured timeline as a table, as a picture, below its program."""

from pathlib import Path

import pytest

from hocket.methods import parse_method
from hocket.methods.simulated.delays import with_staleness
from hocket.program import format_program, unroll
from hocket.timeline import Span, Timeline
from unit.timeline.timelines import simulated_fdg


@pytest.fixture(autouse=True)
def _timeline(here):
    """Write a timeline of FDG on three stages into an empty folder."""
    simulated_fdg(stages=3, batches=20).write(Path("t.json"))


@pytest.fixture
def draw(call):
    """Function that runs `hocket draw`: exit code, standard output, standard error."""
    return lambda arguments: call("draw", *arguments.split())


@pytest.mark.parametrize("window", [(), (8, 2)], ids=["whole", "window"])
def test_the_table_has_the_fractions_of_each_stage(draw, window):
    options = "--first {} --batches {}".format(*window) if window else ""
    code, out, err = draw(f"--timeline t.json {options}")
    assert (code, err) == (0, "")
    for name in ("busy", "communication", "waiting", "unrecorded"):
        assert name in out
    shown = Timeline.read(Path("t.json")).window(*window) if window else simulated_fdg(3, 20)
    for stage, parts in shown.fractions().items():
        spent = [parts.busy, parts.communication, parts.waiting]
        (row,) = (line for line in out.splitlines() if line.startswith(f"│     {stage} │"))
        assert [cell.strip() for cell in row.split("│")[2:5]] == [
            f"{part:.1%}" for part in spent
        ]
    assert f"{shown.length_s:.4g} s" in out


def test_a_timeline_is_drawn(draw):
    code, out, err = draw("--timeline t.json --out t.svg")
    assert (code, out) == (0, "")
    assert "drawn to t.svg" in err
    svg = Path("t.svg").read_text()
    stages = ("stage 0", "stage 1", "stage 2")
    for text in (*stages, "backward", "wait", "send", "10 ms", "measured: t.json"):
        assert f"<!-- {text} -->" in svg
    # The first six batches, and those that enter before the last of them has left.
    assert "<!-- 5 -->" in svg
    assert "<!-- 12 -->" not in svg


@pytest.mark.parametrize(
    ("options", "title", "absent"),
    [
        ("--method fdg:shrink=0.5 --stages 3 --first 10 --batches 3", "fdg:shrink=0.5", 3),
        ("--method ddg --first 18", "ddg", 20),
    ],
    ids=["window", "not more batches"],
)
def test_a_timeline_is_drawn_below_its_program(draw, options, title, absent):
    assert draw(f"--timeline t.json {options} --out t.svg")[0] == 0
    svg = Path("t.svg").read_text()
    for text in (f"{title} on 3 stages", "measured: t.json"):
        assert f"<!-- {text} -->" in svg
    assert svg.count("<!-- stage 0 -->") == 2
    assert "<!-- forward -->" in svg
    assert "target" not in svg
    assert (svg.count("<!-- 12 -->") == 12) == (absent == 3)
    assert f"<!-- {absent} -->" not in svg


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--timeline none.json", "cannot read the timeline 'none.json'"),
        ("--timeline t.json --stages 4", "stages is 4, but 't.json' has 3; drop --stages"),
        ("--timeline t.json --method fdg", "method is 'fdg', but a program is shown"),
        ("--first 3", "first is 3, but there is no timeline"),
        ("--staleness 2,1", "staleness is [2, 1]; write whole numbers of updates"),
        ("--staleness 2,0 --timeline t.json", "a timeline has one already; drop --staleness"),
    ],
)
def test_invalid_options_are_refused_and_nothing_is_drawn(refused, arguments, message):
    assert message in refused("draw", *arguments.split())


def test_an_empty_timeline_and_actions_that_take_no_time_have_no_picture(draw, refused):
    Timeline(()).write(Path("t.json"))
    code, out, _ = draw("--timeline t.json")
    assert code == 0
    assert "busy" in out
    assert "the timeline has no batches" in draw("--timeline t.json --out t.svg")[2]
    Timeline((Span(0, "F", 0, 0, 1.5, 1.5), Span(0, "F", 1, 1, 2.0, 3.0))).write(Path("t.json"))
    assert draw("--timeline t.json --out t.svg")[0] == 0
    said = refused("draw", "--timeline", "t.json", "--batches", 1, "--out", "zero.svg")
    assert "the actions on batches from 0 on all begin and end at 1.5 s" in said


def test_a_program_has_the_staleness_that_was_asked_for(draw):
    code, out, err = draw("--method ddg --staleness 4,1,0 --batches 8")
    assert (code, err) == (0, "")
    method = with_staleness(parse_method("ddg"), [4, 1, 0])
    assert out.strip() == format_program(list(unroll(method, 3, 8)), 3).strip()
    assert draw("--method ddg --staleness 4,1,0 --out t.svg")[0] == 0
    assert "ddg on 3 stages, staleness 4,1,0" in Path("t.svg").read_text()
