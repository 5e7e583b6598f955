"""A picture of a program or a timeline shows every batch at every stage."""

import re
from itertools import pairwise

import pytest

from hocket.errors import OptionError
from hocket.methods import METHODS, build_method
from hocket.program import unroll
from hocket.runs.plot import (
    draw_panels,
    draw_program,
    layout_program,
    program_panel,
    timeline_panel,
)
from hocket.timeline import Span, Timeline


def unroll_method(name, stages=3, batches=5):
    return list(unroll(build_method(name), stages, batches))


@pytest.mark.parametrize(
    ("extension", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_the_extension_decides_the_format(extension, start, tmp_path):
    file = tmp_path / f"dgl.{extension}"
    draw_program(unroll_method("dgl", 2, 2), 2, "DGL", file)
    assert file.read_bytes().startswith(start)


@pytest.mark.parametrize("name", METHODS)
def test_a_stage_does_one_thing_at_a_time(name):
    # A timeline refuses spans that overlap; here no span is nested in another one either.
    timeline = layout_program(unroll_method(name), 3)
    assert timeline.flatten() == timeline


def test_stages_of_back_propagation_wait_for_each_other_and_those_of_fdg_do_not():
    def longest_tick(name):
        borders = program_panel(unroll_method(name, 3, 12), 3, name).tick_ends_s
        return max(b - a for a, b in pairwise([0.0, *borders]))

    # A forward takes 1, a backward 2, an update 0.4; updates of bp overlap with backwards.
    assert longest_tick("fdg") == pytest.approx(3.4)
    assert longest_tick("bp") >= 9


def test_rows_are_the_stages_that_were_recorded_with_the_numbers_that_fit(tmp_path):
    spans = (
        Span(2, "F", 123, 0, 0.0, 1.0),
        Span(2, "F", 456, 1, 1.0, 2.0),
        Span(2, "B", 789, 1, 2.0, 2.1),
    )
    file = tmp_path / "narrow.svg"
    draw_panels([timeline_panel(Timeline(spans), "narrow")], file)
    svg = file.read_text()
    # As matplotlib draws a text as paths below a comment.
    found = re.findall(r"<!-- (\d+) -->|<text[^>]*>(\d+)</text>", svg)
    assert set(found) == {("123", ""), ("456", "")}
    assert set(re.findall(r"stage \d", svg)) == {"stage 2"}


def test_a_picture_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    def fill(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hocket.files.sync_path", fill)
    (tmp_path / "a.svg").write_text("old")
    for place, said in (("none/a.svg", "No such file"), ("a.svg", "No space left")):
        with pytest.raises(OptionError, match=rf"cannot draw to .*a\.svg': {said}"):
            draw_program(unroll_method("fdg"), 3, "fdg", tmp_path / place)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
