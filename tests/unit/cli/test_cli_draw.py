"""`hocket draw --trace`: a measured timeline as a table, as a picture, beside its program."""

from pathlib import Path

import pytest

from hocket.cli.main import main
from hocket.timeline import Timeline
from unit.timeline.made import fdg


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """A folder with a timeline of FDG on three stages, and lines that are not wrapped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    fdg(stages=3, batches=20).write(Path("t.json"))


@pytest.fixture
def call(capsys):
    """Runs `hocket draw` as a shell does: exit code, standard output, standard error."""

    def run(words):
        code = main(["draw", *words.split()])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def percents(text, stage):
    (row,) = (line for line in text.splitlines() if line.startswith(f"│     {stage} │"))
    return [cell.strip() for cell in row.split("│")[2:-1]]


def test_the_table_says_what_stages_spend_their_time_on(call):
    code, out, err = call("--trace t.json")
    assert (code, err) == (0, "")
    for name in ("busy", "communication", "waiting", "rest"):
        assert name in out
    for stage, parts in Timeline.read(Path("t.json")).fractions().items():
        spent = [parts.busy, parts.communication, parts.waiting]
        assert percents(out, stage)[:3] == [f"{part:.1%}" for part in spent]
    assert f"{fdg(stages=3, batches=20).length_s:.4g} s" in out


def test_the_table_of_a_part(call):
    _, whole, _ = call("--trace t.json")
    _, part, _ = call("--trace t.json --first 8 --batches 2")
    window = Timeline.read(Path("t.json")).window(8, 2)
    assert percents(part, 0)[0] == f"{window.fractions()[0].busy:.1%}"
    assert part != whole


def test_a_trace_is_drawn(call):
    code, out, err = call("--trace t.json --out t.svg")
    assert (code, out) == (0, "")
    assert "drawn to t.svg" in err
    svg = Path("t.svg").read_text()
    for text in ("stage 0", "stage 1", "stage 2", "wait", "send", "measured: t.json"):
        assert f"<!-- {text} -->" in svg
    # The first six batches, and what enters until the last of them has left.
    assert "<!-- 5 -->" in svg
    assert "<!-- 12 -->" not in svg


def test_a_trace_is_drawn_below_its_program(call):
    words = "--trace t.json --method fdg:shrink=0.5 --stages 3 --first 10 --batches 3"
    code, _, _ = call(f"{words} --out t.svg")
    assert code == 0
    svg = Path("t.svg").read_text()
    for text in ("fdg:shrink=0.5 on 3 stages", "measured: t.json"):
        assert f"<!-- {text} -->" in svg
    assert svg.count("<!-- stage 0 -->") == 2
    assert svg.count("<!-- 12 -->") == 12
    assert "<!-- 3 -->" not in svg


def test_the_program_has_the_stages_of_the_trace_and_not_more_batches(call):
    code, _, _ = call("--trace t.json --method ddg --first 18 --out t.svg")
    assert code == 0
    svg = Path("t.svg").read_text()
    assert "<!-- ddg on 3 stages -->" in svg
    assert "<!-- 20 -->" not in svg


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--trace none.json", "cannot read the timeline 'none.json'"),
        ("--trace t.json --stages 4", "stages is 4, but 't.json' has 3; drop --stages"),
        ("--trace t.json --method fdg", "method is 'fdg', but a program stands beside a trace"),
        ("--trace t.json --method fgd --out t.svg", "did you mean 'fdg'?"),
        ("--trace t.json --first 20", "the timeline has no batch 20; choose one of 0 to 19"),
        ("--trace t.json --batches 0", "batches is 0; use at least 1"),
        ("--trace t.json --out t.gif", "cannot draw to 't.gif'; use a name in .svg"),
        ("--first 3", "first is 3, but there is no trace; add --trace or drop --first"),
    ],
)
def test_bad_choices_are_refused_and_nothing_is_drawn(call, words, said):
    code, out, err = call(words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert [file.name for file in Path().iterdir()] == ["t.json"]


def test_an_empty_trace_has_an_empty_table_and_no_picture(call):
    Timeline(()).write(Path("t.json"))
    code, out, _ = call("--trace t.json")
    assert code == 0
    assert "busy" in out
    code, _, err = call("--trace t.json --out t.svg")
    assert code == 2
    assert "the timeline has no batches; record a training that has some" in err
