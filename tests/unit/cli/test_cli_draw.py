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


def percents(text, stage):
    (row,) = (line for line in text.splitlines() if line.startswith(f"│     {stage} │"))
    return [cell.strip() for cell in row.split("│")[2:-1]]


def test_the_table_has_the_fractions_of_each_stage(draw):
    code, out, err = draw("--timeline t.json")
    assert (code, err) == (0, "")
    for name in ("busy", "communication", "waiting", "unrecorded"):
        assert name in out
    for stage, parts in Timeline.read(Path("t.json")).fractions().items():
        spent = [parts.busy, parts.communication, parts.waiting]
        assert percents(out, stage)[:3] == [f"{part:.1%}" for part in spent]
    assert f"{simulated_fdg(stages=3, batches=20).length_s:.4g} s" in out


def test_the_table_of_a_window(draw):
    _, whole, _ = draw("--timeline t.json")
    _, part, _ = draw("--timeline t.json --first 8 --batches 2")
    window = Timeline.read(Path("t.json")).window(8, 2)
    assert percents(part, 0)[0] == f"{window.fractions()[0].busy:.1%}"
    assert part != whole


def test_a_timeline_is_drawn(draw):
    code, out, err = draw("--timeline t.json --out t.svg")
    assert (code, out) == (0, "")
    assert "drawn to t.svg" in err
    svg = Path("t.svg").read_text()
    for text in ("stage 0", "stage 1", "stage 2", "wait", "send", "measured: t.json"):
        assert f"<!-- {text} -->" in svg
    # The first six batches, and those that enter before the last of them has left.
    assert "<!-- 5 -->" in svg
    assert "<!-- 12 -->" not in svg


def test_a_timeline_is_drawn_below_its_program(draw):
    arguments = "--timeline t.json --method fdg:shrink=0.5 --stages 3 --first 10 --batches 3"
    code, _, _ = draw(f"{arguments} --out t.svg")
    assert code == 0
    svg = Path("t.svg").read_text()
    for text in ("fdg:shrink=0.5 on 3 stages", "measured: t.json"):
        assert f"<!-- {text} -->" in svg
    assert svg.count("<!-- stage 0 -->") == 2
    assert svg.count("<!-- 12 -->") == 12
    assert "<!-- 3 -->" not in svg


def test_the_program_has_the_stages_of_the_timeline_and_not_more_batches(draw):
    code, _, _ = draw("--timeline t.json --method ddg --first 18 --out t.svg")
    assert code == 0
    svg = Path("t.svg").read_text()
    assert "<!-- ddg on 3 stages -->" in svg
    assert "<!-- 20 -->" not in svg


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--timeline none.json", "cannot read the timeline 'none.json'"),
        ("--timeline t.json --stages 4", "stages is 4, but 't.json' has 3; drop --stages"),
        (
            "--timeline t.json --method fdg",
            "method is 'fdg', but a program is shown with a timeline only",
        ),
        ("--timeline t.json --method fgd --out t.svg", "did you mean 'fdg'?"),
        ("--timeline t.json --first 20", "the timeline has no batch 20; choose one of 0 to 19"),
        ("--timeline t.json --batches 0", "batches is 0; use at least 1"),
        ("--timeline t.json --out t.gif", "cannot draw to 't.gif'; use a name in .svg"),
        ("--first 3", "first is 3, but there is no timeline; add --timeline or drop --first"),
    ],
)
def test_invalid_options_are_refused_and_nothing_is_drawn(draw, arguments, message):
    code, out, err = draw(arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert [file.name for file in Path().iterdir()] == ["t.json"]


def test_an_empty_timeline_has_an_empty_table_and_no_picture(draw):
    Timeline(()).write(Path("t.json"))
    code, out, _ = draw("--timeline t.json")
    assert code == 0
    assert "busy" in out
    code, _, err = draw("--timeline t.json --out t.svg")
    assert code == 2
    assert "the timeline has no batches; record a training that has some" in err


def test_actions_that_take_no_time_have_no_picture(draw):
    Timeline((Span(0, "F", 0, 0, 1.5, 1.5), Span(0, "F", 1, 1, 2.0, 3.0))).write(Path("t.json"))
    assert draw("--timeline t.json --out t.svg")[0] == 0
    code, _, err = draw("--timeline t.json --batches 1 --out zero.svg")
    assert code == 2
    assert "the actions on batches from 0 on all begin and end at 1.5 s; choose other" in err
    assert not Path("zero.svg").exists()


def test_a_program_has_the_staleness_that_was_asked_for(draw):
    code, out, err = draw("--method ddg --staleness 4,1,0 --batches 8")
    assert (code, err) == (0, "")
    method = with_staleness(parse_method("ddg"), [4, 1, 0])
    assert out.strip() == format_program(list(unroll(method, 3, 8)), 3).strip()
    assert draw("--method ddg --staleness 4,1,0 --out t.svg")[0] == 0
    assert "ddg on 3 stages, staleness 4,1,0" in Path("t.svg").read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--staleness 2,1", "staleness is [2, 1]; write numbers of updates that fall to 0"),
        ("--staleness much", "staleness is 'much'; write a number for each stage: 6,4,2,0"),
        (
            "--staleness 2,0 --stages 3",
            "has delays of the edges between 2 stages, and there are 3",
        ),
        ("--staleness 2,0 --timeline t.json", "a timeline has one already; drop --staleness"),
    ],
)
def test_a_staleness_that_has_no_effect_is_refused(draw, words, reason):
    code, out, err = draw(words)
    assert (code, out) == (2, "")
    assert reason in err
