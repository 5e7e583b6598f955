"""A picture of a program shows every batch at every stage."""

import re
from collections import Counter
from itertools import pairwise

import pytest

from hocket.errors import OptionError
from hocket.methods import METHODS, build
from hocket.picture import _borders, draw_picture
from hocket.program import unroll


def ticks_of(name, stages=3, batches=5):
    return list(unroll(build(name), stages, batches))


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
    stages = 3
    spans = [span for tick, _ in _borders(ticks_of(name), stages) for span in tick]
    for k in range(stages):
        mine = sorted((start, stop) for _, (stage, _), start, stop in spans if stage == k)
        assert all(a[1] <= b[0] for a, b in pairwise(mine))


def test_stages_of_back_propagation_wait_for_each_other_and_those_of_fdg_do_not():
    def longest_tick(name):
        ends = [0.0, *(end for _, end in _borders(ticks_of(name, 3, 12), 3))]
        return max(b - a for a, b in pairwise(ends))

    # A forward is 1, a backward 2, an update 0.4; the updates of bp overlap with backwards.
    assert longest_tick("fdg") == pytest.approx(3.4)
    assert longest_tick("bp") >= 9
