"""Stages that run freely in processes of their own: nobody waits, and everything is counted."""

import re

import pytest

from contract.free_worlds import EPOCHS, LENGTH, STAGES, STOPPED_AT, found

pytestmark = pytest.mark.xdist_group("free processes")
TRAININGS = ["plain", "slow end", "slow beginning", "codebooks", "stopped", "limited"]
every_training = pytest.mark.parametrize("name", TRAININGS)
TURNS = EPOCHS * LENGTH


@every_training
def test_every_stage_learns_for_as_many_epochs_of_its_own(name):
    for one in found()[name]:
        assert one["counts"]["B"] == one["counts"]["U"] == TURNS
        assert one["epochs"] == [turn // LENGTH for turn in range(TURNS)]
        assert one["epoch"] == EPOCHS


@every_training
def test_every_batch_is_used_or_counted_as_dropped(name):
    stages = found()[name]
    for k in range(1, STAGES):
        before, own, uses = stages[k - 1], stages[k], stages[k]["uses"]
        assert before["counts"]["F"] == before["unsent"] + uses["arrived"]
        assert uses["drawn"] == own["counts"]["F"]
        used = uses["drawn"] - uses["reused"]
        assert uses["arrived"] == used + uses["dropped"] + own["waiting"]
    assert stages[0]["uses"] is None
    assert stages[-1]["unsent"] == 0


@every_training
def test_all_processes_end_with_the_same_network_and_history(name):
    first, *others = found()[name]
    for other in others:
        assert other["history"] == first["history"]
        assert other["weights"] == first["weights"]
        assert other["again"] == first["again"]
    assert [epoch["number"] for epoch in first["history"]] == list(range(EPOCHS))
    assert first["history"][-1]["evaluation"]["loss"] == pytest.approx(first["again"])
    assert first["history"][0]["evaluation"] is None


def test_a_slow_beginning_is_used_again_and_a_slow_end_misses_batches():
    stages = found()["slow beginning"]
    assert stages[1]["uses"]["reused"] > 0
    stages = found()["slow end"]
    assert stages[2]["uses"]["dropped"] + stages[1]["unsent"] > 0


def test_the_others_go_on_while_a_stage_is_stopped():
    """The first stage has learned all it has to before it lets the stopped one go on."""
    stages = found()["stopped"]
    assert stages[0]["counts"]["B"] == TURNS
    missed = stages[0]["unsent"] + stages[1]["uses"]["dropped"]
    assert missed > 0
    assert stages[2]["uses"]["reused"] > 0
    assert TURNS > STOPPED_AT + 1


def test_what_may_be_used_once_is_used_once():
    for one in found()["limited"][1:]:
        assert one["uses"]["reused"] == 0


def test_a_second_training_learns_as_much_again_and_ends_with_whole_updates():
    for one in found()["twice"]:
        assert one["counts"] == {"B": 8, "U": 4}


def test_what_cannot_be_is_refused_in_every_process():
    for one in found()["refusals"]:
        assert "take their turns; leave replicas at 1 and stage_timing" in one["turns"]
        assert "the training data do not say how many batches they have" in one["length"]


def test_a_stage_that_finds_nothing_to_draw_names_whom_it_waits_for():
    texts = [one["error"] for one in found()["starving"]]
    (told,) = {text for text in texts if "waited" in text}
    pattern = (
        r"stage [12] waited \d+ s for anything from stage [01]; stage 0 has been taking turn 2"
    )
    assert re.match(pattern, told)
