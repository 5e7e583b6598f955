"""A trainer gives back what it took: threads, descriptors, memory, and the network."""

from functools import cache

import pytest
import torch

from contract import closing
from contract.closing import (
    CLOSED,
    DISORDERLY,
    HALF,
    USES,
    alive_after,
    build,
    growth_per_tick,
    refusal,
    train,
)
from contract.processes import in_processes
from contract.small import mlp
from hocket import Trainer
from hocket.methods import METHODS

in_a_world = pytest.mark.xdist_group("closing")


@cache
def found():
    """Return what is left in each of two processes."""
    return in_processes(closing.in_a_world, processes=2)


# In one process.


@pytest.mark.parametrize("name", USES)
def test_a_closed_trainer_refuses_every_use(name):
    with build(mlp(2)) as trainer:
        train(trainer)
    assert refusal(trainer, USES[name]).startswith(CLOSED)


def test_the_network_of_a_closed_trainer_stays_with_all_that_was_learned():
    trainer = build(mlp(2))
    train(trainer)
    before = {name: value.clone() for name, value in trainer.network.state_dict().items()}
    trainer.close()
    trainer.close()  # does nothing
    after = trainer.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before | after)
    assert (trainer.epoch, trainer.stage_count, trainer.process_name) == (1, 2, None)
    assert trainer.is_main_process
    with build(trainer.network, stages=2) as again:
        train(again)


def test_a_trainer_closes_itself_also_after_an_error():
    with pytest.raises(ValueError, match="mine"), build(mlp(2)) as trainer:
        raise ValueError("mine")
    assert refusal(trainer, Trainer.finish).startswith(CLOSED)


@pytest.mark.parametrize(
    "use", [Trainer.close, lambda trainer: None], ids=["closed", "dropped"]
)
def test_nothing_of_a_trainer_is_kept_alive(use):
    assert alive_after(use) == []


def test_a_closed_trainer_that_is_kept_has_no_stages():
    kept = []
    alive = alive_after(lambda trainer: (trainer.close(), kept.append(trainer)))
    assert alive == ["Trainer"]


@pytest.mark.parametrize("name", ["fdg", "dgl-async"])
def test_a_tick_leaves_nothing_in_memory(name):
    assert growth_per_tick(build(mlp(2), method=METHODS[name]())) < 0.5


# Among processes.


@in_a_world
def test_any_number_of_trainings_has_the_threads_and_descriptors_of_one():
    assert [max(process["trainings"]) <= 0 for process in found()] == [True, True]


@in_a_world
@pytest.mark.parametrize("which", ["failed trainings", "forgotten trainings"])
def test_trainings_that_fail_or_are_forgotten_do_not_pile_up(which):
    assert all(max(process[which]) <= HALF for process in found())
    assert [process["alive if forgotten"] for process in found()] == [[], []]


@in_a_world
def test_a_training_that_failed_has_the_same_error_every_time():
    errors = [process["errors"] for process in found()]
    assert errors == [["NonFiniteError"] * DISORDERLY, ["PeerFailedError"] * DISORDERLY]


@in_a_world
def test_among_processes_a_closed_trainer_refuses_every_use_and_leaves_the_whole_network():
    with build(mlp(2)) as alone:
        train(alone)
    for process in found():
        assert process["refused"].keys() == USES.keys()
        assert all(text.startswith(CLOSED) for text in process["refused"].values())
        weights = [v.flatten().tolist() for v in alone.network.state_dict().values()]
        assert process["weights"] == weights
        assert process["alive"] == []


@in_a_world
def test_among_processes_a_tick_leaves_nothing_in_memory():
    growth = [process["growth"] for process in found()]
    assert max(growth) < 0.5, growth
