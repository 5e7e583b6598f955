"""Resumed = uninterrupted: equal bits of weights, optimizers, metrics and events."""

from dataclasses import replace

import pytest

from contract.resumed import CASES, all_of, differences
from contract.small import data
from contract.worlds import NETS, trained
from hocket import Checkpoints


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_training_resumed_after_any_tick_is_one_that_never_stopped(case, tmp_path):
    whole, checkpoints = all_of(case, 3, tmp_path)
    ticks = case.epochs * case.batches
    assert len(checkpoints) == ticks + case.epochs
    for place in checkpoints:
        assert not differences(whole, trained(case, 3, resume=place)), place.name


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("case", CASES[::8], ids=str)
def test_on_any_number_of_stages(case, stages, tmp_path):
    whole, checkpoints = all_of(case, stages, tmp_path)
    for place in checkpoints[::3]:
        assert not differences(whole, trained(case, stages, resume=place)), place.name


@pytest.mark.parametrize("case", CASES[::6], ids=str)
def test_leaving_checkpoints_changes_nothing(case, tmp_path):
    whole, _ = all_of(case, 3, tmp_path)
    plain = dict(case.trainer) | {"resumable": False}
    assert not differences(whole, trained(replace(case, trainer=tuple(plain.items())), 3))


class Falls(Exception):
    """Ends a training from outside."""


class Falling(list):
    """Data that end in an error at one batch of each reading, as long as there are any."""

    def __init__(self, batches, falls):
        super().__init__(batches)
        self.falls = falls

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if self.falls and self.falls[0] == number:
                del self.falls[0]
                raise Falls
            yield batch


@pytest.mark.parametrize("case", CASES[::6], ids=str)
def test_a_training_may_be_resumed_again_and_again(case, tmp_path):
    whole = trained(case, 3)
    batches = data(NETS[case.net], case.batches, case.size, last=case.last)
    falls = Falling(batches, [2, 1, 2, 1])
    checkpoints, resume = Checkpoints(tmp_path, every=1, keep=1), None
    while falls.falls:
        with pytest.raises(Falls):
            trained(case, 3, checkpoints, resume, batches=falls)
        resume = tmp_path
    assert not differences(whole, trained(case, 3, checkpoints, resume, batches=falls))
