"""After a tick that an error cuts short, no step goes on without the batches in flight."""

import math

import pytest

from contract.small import data, different, mlp, sgd, stepped
from hocket import Trainer
from hocket.errors import DataError, HocketError, NonFiniteError
from hocket.methods import BP, FDG


def trainer_of(modules, method=None, **options):
    return Trainer(modules, method=method or FDG(), optimizer=sgd, **options)


def test_a_step_after_a_tick_that_was_cut_short_says_so():
    def fail(event, stage):
        if event.tick == 3:
            raise RuntimeError("boom")

    trainer = trainer_of(mlp(2), watchers=[fail])
    with pytest.raises(RuntimeError, match="boom"):
        stepped(trainer, data(mlp, 8))
    with pytest.raises(HocketError, match="a tick was cut short by RuntimeError"):
        stepped(trainer, data(mlp, 8))
    with pytest.raises(HocketError, match="are lost; resume a new"):
        trainer.finish()


def test_a_group_of_batches_that_has_lost_one_is_not_updated():
    batches = data(mlp, 3)
    trainer = trainer_of(mlp(2), BP(accumulate=2))
    stepped(trainer, batches[:1])
    with pytest.raises(DataError, match="is out of bounds"):
        trainer.step(batches[1][0], batches[1][1] + 1000)
    with pytest.raises(HocketError, match="and the batches before their update are lost"):
        stepped(trainer, batches[2:])


def test_a_batch_that_breaks_is_left_out_where_nothing_is_in_flight():
    batches = data(mlp, 3)
    broken = batches[0][0], batches[0][1] + 1000
    trainer, wanted = trainer_of(mlp(2), BP()), trainer_of(mlp(2), BP())
    with pytest.raises(DataError, match="is out of bounds"):
        trainer.step(*broken)
    assert not any(len(stage.in_flight) for stage in trainer.stages)
    stepped(trainer, batches)
    stepped(wanted, batches)
    assert not different(trainer.network.parameters(), wanted.network.parameters())


@pytest.mark.parametrize("every", [1, 4])
def test_no_step_follows_one_that_found_nan(every):
    trainer = trainer_of(mlp(2), check_every=every)
    batches = data(mlp, 12)
    batches[2][0].fill_(math.nan)
    with pytest.raises(NonFiniteError):
        stepped(trainer, batches)
    with pytest.raises(HocketError, match="cut short by NonFiniteError"):
        stepped(trainer, batches[4:])
