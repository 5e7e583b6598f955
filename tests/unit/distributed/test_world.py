"""Processes know their stage and replica, and have the same values after a collective."""

import json
import os
import re
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from hocket.distributed.launching.launch import launch
from hocket.distributed.world import joined_worlds
from hocket.distributed.world.solo_world import SoloWorld
from unit.distributed import world_worker

pytestmark = pytest.mark.xdist_group("world_worker")


@cache
def all_results():
    """Run four processes, two stages with two replicas, and return their results."""
    with tempfile.TemporaryDirectory() as folder:
        code = launch(world_worker.run_four_processes, folder, processes=4, threads=1)
        assert code == 0
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(4)]


def by_rank(name):
    return [results[name] for results in all_results()]


def test_replicas_of_a_stage_have_adjacent_ranks():
    assert by_rank("place") == [
        [0, 0, "stage 0, replica 0", True],
        [0, 1, "stage 0, replica 1", False],
        [1, 0, "stage 1, replica 0", False],
        [1, 1, "stage 1, replica 1", False],
    ]
    assert by_rank("names") == [[name for _, _, name, _ in by_rank("place")]] * 4
    assert by_rank("process") == [
        ["stage0-replica0", True, [0]],
        ["stage0-replica1", True, [0]],
        ["stage1-replica0", False, [1]],
        ["stage1-replica1", False, [1]],
    ]
    assert by_rank("neighbours") == [[2, -2], [3, -1], [4, 0], [5, 1]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too many", "there are 4 processes, but 1 stage needs 1; start that many, or choose"),
        (
            "too few",
            "there are 4 processes, but 3 stages need 3; start that many, or choose another",
        ),
        ("too few for replicas", "there are 4 processes, but 3 stages x 2 replicas need 6; st"),
        ("one stage", "one stage with 4 replicas is data parallelism; use torch.nn.parallel"),
    ],
)
def test_a_world_that_does_not_fit_is_refused_by_all(name, message):
    for text in by_rank(name):
        assert text.startswith(message)


def test_processes_that_do_different_things_get_no_values_of_each_other():
    doing = "rank 0 is training, rank 1 is evaluating, rank 2 is training, rank 3 is training"
    for said in by_rank("different"):
        assert f"do different things at the same time: {doing}; call evaluate, predict" in said


def test_gather_gives_all_values_to_all():
    values = [{"rank": rank, "text": "é" * 1000 * rank, "none": None} for rank in range(4)]
    assert by_rank("gather") == [values] * 4


def test_broadcast_gives_the_value_of_the_first_to_all():
    values = [[[[0.0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]]]
    values[0].append([[v + 12 for v in row] for row in values[0][0]])
    assert by_rank("broadcast") == [[values, [24, 1, 8, 2], ["a", None], [0, 3]]] * 4


def test_broadcast_in_place_gives_the_tensors_of_any_rank_to_all():
    assert by_rank("broadcast in place") == [[[2.0, 2.0], [], 2]] * 4


def test_replicas_have_the_weights_of_the_first_of_their_stage():
    assert by_rank("synced") == [[0.0], [0.0], [2.0], [2.0]]


def test_on_one_machine_all_clocks_are_nearly_the_same():
    first, *others = by_rank("clock offset")
    assert first == 0
    assert max(map(abs, others)) < 0.5  # half of the quickest exchange, on a busy machine


def test_a_world_closes_its_connections_once():
    assert by_rank("link") == [["begin", "finish"]] * 4


def test_threads_of_a_world_that_was_left_in_good_order_end_with_the_next_one():
    for rank, counts in enumerate(by_rank("threads")):
        assert counts["good order"] == counts["good order again"]
        assert (counts["missed packet"] > counts["good order"]) == (rank == 3)
        assert (counts["broken operation"] > counts["missed packet"]) == (rank == 1)


def test_gradients_are_summed_in_buckets_of_any_dtype():
    sizes = [4, 8, None, 20, 3]
    for steps in by_rank("gradient sums"):
        for step, gradients in zip((1, 2), steps, strict=True):
            total = 3.0 * step  # shares of 1 and 2
            flat = [None if size is None else [total] * size for size in sizes]
            assert gradients == [*flat, [[total] * 2] * 2]


def test_a_process_without_others_has_a_solo_world(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert type(joined_worlds.join_world(2, 1, 60.0, 1800.0)) is SoloWorld
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert type(joined_worlds.join_world(2, 1, 60.0, 1800.0)) is SoloWorld
    assert joined_worlds.is_main()


def test_without_other_processes_there_is_nothing_to_report_or_leave(monkeypatch):
    monkeypatch.setattr(joined_worlds, "_joined", joined_worlds._Joined())
    assert joined_worlds.report_failure(ValueError("mine"))
    joined_worlds.exit_process(1)  # does nothing
    joined_worlds.shutdown()


def test_an_exit_code_is_kept_if_nobody_reads_the_output(monkeypatch):
    codes = []
    monkeypatch.setattr(joined_worlds, "_joined", joined_worlds._Joined(count=1))
    monkeypatch.setattr(os, "_exit", codes.append)
    reading, writing = os.pipe()
    os.close(reading)
    unread = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stdout", unread)
    monkeypatch.setattr(sys, "stderr", unread)
    unread.write("buffered")
    error = joined_worlds.PeerFailedError("stage 1 failed")
    joined_worlds._report_uncaught(type(error), error, None)
    assert codes == [74]
    unread.close()  # what it could not write is dropped


def test_an_uncaught_error_is_printed_in_one_piece(capsys, monkeypatch):
    codes = []
    monkeypatch.setattr(joined_worlds, "exit_process", codes.append)
    for error in (
        ValueError("mine"),
        joined_worlds.PeerFailedError("stage 1 failed"),
        KeyboardInterrupt(),
    ):
        joined_worlds._report_uncaught(type(error), error, None)
    assert codes == [1, 74, 130]
    assert re.fullmatch(
        r"ValueError: mine\nhocket.errors.PeerFailedError: stage 1 failed\nKeyboardInterrupt\n",
        capsys.readouterr().err,
    )
