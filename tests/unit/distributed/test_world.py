"""Processes find their places, and have the same of what one of them gives."""

import json
import re
import tempfile
from functools import cache
from pathlib import Path

import pytest

from hocket.distributed import world
from hocket.distributed.launch import launch
from unit.distributed import meeting

pytestmark = pytest.mark.xdist_group("meeting")


@cache
def found():
    """What each of four processes found, two stages with two replicas each."""
    with tempfile.TemporaryDirectory() as folder:
        assert launch(meeting.in_four, folder, processes=4, threads=1) == 0
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(4)]


def of_all(name):
    return [own[name] for own in found()]


def test_replicas_of_a_stage_are_next_to_each_other():
    assert of_all("place") == [
        [0, 0, "stage 0, replica 0", True],
        [0, 1, "stage 0, replica 1", False],
        [1, 0, "stage 1, replica 0", False],
        [1, 1, "stage 1, replica 1", False],
    ]
    assert of_all("places") == [[place for _, _, place, _ in of_all("place")]] * 4
    assert of_all("neighbours") == [[2, -2], [3, -1], [4, 0], [5, 1]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "too few",
            "there are 4 processes, but 3 stages need 3; start that many, or ask for other",
        ),
        ("too few for replicas", "there are 4 processes, but 3 stages x 2 replicas need 6; st"),
        ("one stage", "one stage with 4 replicas is data parallelism; use torch.nn.parallel"),
    ],
)
def test_a_world_that_does_not_fit_is_refused_by_all(name, said):
    for text in of_all(name):
        assert text.startswith(said)


def test_all_have_what_each_one_gives():
    given = [{"rank": rank, "text": "é" * 1000 * rank, "none": None} for rank in range(4)]
    assert of_all("gathered") == [given] * 4


def test_all_have_what_the_first_one_broadcasts():
    values = [[[[0.0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]]]
    values[0].append([[v + 12 for v in row] for row in values[0][0]])
    assert of_all("broadcast") == [[values, [24, 1, 8, 2], ["a", None], [0, 3]]] * 4


def test_all_have_the_tensors_of_any_one():
    assert of_all("spread") == [[[2.0, 2.0], [], 2]] * 4


def test_replicas_have_the_weights_of_the_first_of_their_stage():
    assert of_all("aligned") == [[0.0], [0.0], [2.0], [2.0]]


def test_on_one_machine_all_clocks_are_nearly_the_same():
    first, *others = of_all("clock")
    assert first == 0
    assert max(map(abs, others)) < 0.05  # half of the quickest exchange, on a busy machine


def test_what_is_to_be_done_at_the_end_is_done():
    assert of_all("done") == [["parted"]] * 4


def test_gradients_are_added_up_in_buckets_of_any_kind():
    sizes = [4, 8, None, 20, 3]
    for own in of_all("sums"):
        for step, gradients in zip((1, 2), own, strict=True):
            whole = 3.0 * step  # shares of 1 and 2
            flat = [None if size is None else [whole] * size for size in sizes]
            assert gradients == [*flat, [[whole] * 2] * 2]


def test_where_there_is_one_process_there_is_no_world(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert world.join_world(2, 1, 60.0) is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert world.join_world(2, 1, 60.0) is None
    assert world.is_main()


def test_alone_nobody_has_to_be_told(monkeypatch):
    monkeypatch.setattr(world, "_joined", [])
    assert world.report_failure(ValueError("mine"))
    world.exit_process(1)  # does nothing
    world.shutdown()


def test_an_uncaught_error_is_told_in_one_piece(capsys, monkeypatch):
    ends = []
    monkeypatch.setattr(world, "exit_process", ends.append)
    for error in (
        ValueError("mine"),
        world.PeerFailedError("stage 1 failed"),
        KeyboardInterrupt(),
    ):
        world._uncaught(type(error), error, None)
    assert ends == [1, 74, 130]
    assert re.fullmatch(
        r"ValueError: mine\nhocket.errors.PeerFailedError: stage 1 failed\nKeyboardInterrupt\n",
        capsys.readouterr().err,
    )
