"""Processes know their stage and replica, and have the same values after a collective."""

from functools import cache

import pytest

from contract.processes import in_processes
from hocket.distributed.world import joined_worlds
from hocket.distributed.world.solo_world import SoloWorld
from unit.distributed import world_worker

pytestmark = pytest.mark.xdist_group("world_worker")


@cache
def all_results():
    """Run four processes, two stages with two replicas, and return their results."""
    return in_processes(world_worker.run_four_processes, processes=4)


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
        ("too few", "there are 4 processes, but 3 stages need 3; start that many, or choose"),
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


def test_a_process_without_others_has_a_solo_world(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert type(joined_worlds.join_world(2, 1, 60.0, 1800.0)) is SoloWorld
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert type(joined_worlds.join_world(2, 1, 60.0, 1800.0)) is SoloWorld
    assert joined_worlds.is_main()
