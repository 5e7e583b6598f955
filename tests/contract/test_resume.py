"""Resumed = uninterrupted: equal bits of weights, optimizers, metrics and events."""

from dataclasses import replace

import pytest
from torch import nn

from contract.resumed import CASES, FREE, all_of, differences, resumable
from contract.small import LOCKSTEP, WatchedBatches, data, mlp, sgd
from contract.spoiled import BACKWARD, FORWARD
from contract.worlds import NETS, Case, distinct, trained
from hocket import Checkpoints, Trainer
from hocket.errors import CheckpointError
from hocket.methods import DGLAsync
from hocket.remedies import T1, T3

# Delays that follow from staleness, and batches that stages skip.
SKIPPING = [
    *(("fdg", stage, kind) for stage in range(3) for kind in (FORWARD, BACKWARD)),
    *((name, 1, kind) for name in ("dni", "dgl") for kind in (FORWARD, BACKWARD)),
]
# Flushed until their second or third update.
FLUSHED_AT_FIRST = [
    Case("adl", "conv", (("accumulate", 2),), remedies=(T3(updates=2), T1(anneal=3))),
    Case("pipedream", options=(("hold", "vertical"),), remedies=(T3(updates=3),)),
]
IN_ONE_PROCESS = [
    *map(resumable, FLUSHED_AT_FIRST),
    *CASES,
    resumable(Case("ddg", "conv", profile=(4, 1, 0))),
    *(
        resumable(
            Case(name, "brittle", trainer=(("on_nan", "skip"),), spoiled=((1, stage + kind),))
        )
        for name, stage, kind in SKIPPING
    ),
]


@pytest.mark.parametrize("case", distinct(IN_ONE_PROCESS), ids=str)
def test_a_training_resumed_after_any_tick_is_one_that_never_stopped(case, tmp_path):
    whole, checkpoints = all_of(case, 3, tmp_path)
    ticks = case.epochs * case.batches
    assert len(checkpoints) == ticks + case.epochs
    number = IN_ONE_PROCESS.index(case)
    # Every method after every tick, and its options after odd and even ones in turn.
    every = number < len(FLUSHED_AT_FIRST) + len(LOCKSTEP)
    for place in checkpoints if every else checkpoints[number % 2 :: 2]:
        assert not differences(whole, trained(case, 3, resume=place)), place.name


@pytest.mark.parametrize("case", FREE, ids=str)
def test_stages_that_run_freely_go_on_after_any_turn_of_the_first(case, tmp_path):
    whole, checkpoints = all_of(case, 3, tmp_path)
    assert len(checkpoints) >= case.epochs * (case.batches + 1)
    for place in checkpoints[FREE.index(case) % 2 :: 2]:  # all of them, over all cases
        assert not differences(whole, trained(case, 3, resume=place)), place.name


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("case", CASES[::8], ids=str)
def test_on_any_number_of_stages(case, stages, tmp_path):
    whole, checkpoints = all_of(case, stages, tmp_path)
    for place in checkpoints[::3]:
        assert not differences(whole, trained(case, stages, resume=place)), place.name


@pytest.mark.parametrize("case", [*CASES[::6], FREE[-2]], ids=str)
def test_leaving_checkpoints_changes_nothing(case, tmp_path):
    whole, _ = all_of(case, 3, tmp_path)
    plain = dict(case.trainer) | {"resumable": False}
    assert not differences(whole, trained(replace(case, trainer=tuple(plain.items())), 3))


class Falls(Exception):
    """Ends a training from outside."""


@pytest.mark.parametrize("case", [*CASES[::6], FREE[3]], ids=str)
def test_a_training_may_be_resumed_again_and_again(case, tmp_path):
    whole, falls = trained(case, 3), [2, 1, 2, 1]

    def fall(_, number):
        if falls and falls[0] == number:
            del falls[0]
            raise Falls

    batches = data(NETS[case.net], case.batches, case.size, last=case.last)
    batches = WatchedBatches(batches, fall)
    checkpoints, resume = Checkpoints(tmp_path, every=1, keep=1), None
    while falls:
        with pytest.raises(Falls):
            trained(case, 3, checkpoints, resume, batches=batches)
        resume = tmp_path
    assert not differences(whole, trained(case, 3, checkpoints, resume, batches=batches))


# Stages that run freely, where they cannot go on.


def free_trainer(stages, **options):
    return Trainer(mlp(stages), method=DGLAsync(), optimizer=sgd, resumable=True, **options)


def test_free_stages_go_on_only_as_they_were_cut(tmp_path):
    first = free_trainer(2)
    first.step(*data(mlp, 1)[0])
    first.save(tmp_path)
    one, *rest = first.network[0]
    elsewhere = [one, nn.Sequential(*rest, first.network[1])]
    with pytest.raises(CheckpointError, match="can only continue as they were cut, as each"):
        Trainer(elsewhere, method=DGLAsync(), optimizer=sgd, resumable=True).resume(tmp_path)
    with pytest.raises(CheckpointError, match=r"stage_speeds is \(1, 0.5\), and was"):
        free_trainer(2, stage_speeds=(1, 0.5)).resume(tmp_path)
