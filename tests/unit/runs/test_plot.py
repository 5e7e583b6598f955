"""A picture of a program or a timeline shows every batch at every stage."""

import re
from collections import Counter
from itertools import pairwise

import pytest

from hocket.errors import OptionError
from hocket.methods import METHODS, build_method
from hocket.program import unroll
from hocket.runs.plot import (
    draw_panels,
    draw_picture,
    lay_out,
    program_panel,
    timeline_panel,
)
from hocket.timeline import Span, Timeline
from unit.timeline.made import fdg


def ticks_of(name, stages=3, batches=5):
    return list(unroll(build_method(name), stages, batches))


def numbers_in(svg):
    """The texts that are numbers; matplotlib writes a text as paths under a comment."""
    return Counter(re.findall(r"<!-- (\d+) -->|<text[^>]*>(\d+)</text>", svg))


def test_every_batch_is_in_the_svg_once_for_each_forward_and_backward(tmp_path):
    file = tmp_path / "fdg.svg"
    draw_picture(ticks_of("fdg"), 3, "FDG on 3 stages", file)
    svg = file.read_text()
    # 3 stages, a forward and a backward each.
    assert numbers_in(svg) == {(str(batch), ""): 6 for batch in range(5)}
    for text in ("stage 0", "stage 2", "forward", "backward", "FDG on 3 stages"):
        assert text in svg


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_the_ending_decides_the_format(ending, start, tmp_path):
    file = tmp_path / f"dgl.{ending}"
    draw_picture(ticks_of("dgl", 2, 2), 2, "DGL", file)
    assert file.read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["a.gif", "a", "a.svg.txt"])
def test_other_endings_are_refused(name, tmp_path):
    with pytest.raises(OptionError, match=r"use a name in \.svg, \.png or \.pdf"):
        draw_picture(ticks_of("fdg"), 3, "FDG", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_stage_does_one_thing_at_a_time(name):
    # A timeline refuses what overlaps; here not even one lies in the other.
    planned = lay_out(ticks_of(name), 3)
    assert planned.flat() == planned


def test_stages_of_back_propagation_wait_for_each_other_and_those_of_fdg_do_not():
    def longest_tick(name):
        borders = program_panel(ticks_of(name, 3, 12), 3, name).borders_s
        return max(b - a for a, b in pairwise([0.0, *borders]))

    # A forward is 1, a backward 2, an update 0.4; the updates of bp overlap with backwards.
    assert longest_tick("fdg") == pytest.approx(3.4)
    assert longest_tick("bp") >= 9


# What was measured.


def test_a_timeline_shows_what_a_program_shows_and_the_time_between(tmp_path):
    file = tmp_path / "measured.svg"
    draw_panels([timeline_panel(fdg(stages=3, batches=5), "measured")], file)
    svg = file.read_text()
    # The wait in the middle of a backward does not make two of it.
    assert numbers_in(svg) == {(str(batch), ""): 6 for batch in range(5)}
    for text in ("stage 0", "stage 2", "backward", "send", "wait", "10 ms", "measured"):
        assert text in svg
    assert "target" not in svg


def test_program_and_timeline_in_one_picture(tmp_path):
    file = tmp_path / "both.svg"
    ticks = ticks_of("fdg", 3, 20)
    panels = [
        program_panel(ticks, 3, "the program", first=10, batches=4),
        timeline_panel(fdg(stages=3, batches=20).window(10, 4), "what was measured"),
    ]
    draw_panels(panels, file)
    svg = file.read_text()
    for text in ("the program", "what was measured", "wait"):
        assert svg.count(f"<!-- {text} -->") == 1
    assert svg.count("<!-- stage 1 -->") == 2
    # Each of the batches asked for passes every stage forwards and backwards, in both panels.
    assert {numbers_in(svg)[str(batch), ""] for batch in range(10, 14)} == {12}
    assert not {("0", ""), ("19", "")} & numbers_in(svg).keys()


def test_numbers_that_do_not_fit_are_left_out(tmp_path):
    spans = (
        Span(0, "F", 123, 0, 0.0, 1.0),
        Span(0, "F", 456, 1, 1.0, 2.0),
        Span(0, "B", 789, 1, 2.0, 2.1),
    )
    file = tmp_path / "narrow.svg"
    draw_panels([timeline_panel(Timeline(spans), "narrow")], file)
    assert set(numbers_in(file.read_text())) == {("123", ""), ("456", "")}


def test_rows_are_the_stages_that_were_recorded(tmp_path):
    file = tmp_path / "one.svg"
    draw_panels([timeline_panel(Timeline((Span(2, "U", 0, 0, 0.0, 1.0),)), "one")], file)
    svg = file.read_text()
    assert "stage 2" in svg
    assert "stage 0" not in svg


def test_a_program_has_no_batch_beyond_its_last():
    with pytest.raises(OptionError, match="the timeline has no batch 7; choose one of 0 to 4"):
        program_panel(ticks_of("fdg"), 3, "fdg", first=7)


def test_a_picture_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(OptionError, match=r"cannot draw to .*a\.svg': No such file"):
        draw_picture(ticks_of("fdg"), 3, "fdg", tmp_path / "none" / "a.svg")
