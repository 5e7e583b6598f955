"""A training that is resumed says which choices differ from those of its checkpoint."""

import warnings
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from contract.small import different
from hocket import FDG, Checkpoints, Trainer
from hocket.checkpoint.directory import checkpoint_name
from hocket.data import Batches, InMemory
from hocket.errors import CheckpointError, DataError, OptionError
from hocket.training.session.agreement import as_text

INPUTS, TARGETS = torch.randn(24, 4), torch.randint(0, 3, (24,))


def network(p=0.1, eps=1e-5):
    torch.manual_seed(0)
    layers = OrderedDict(
        first=nn.Linear(4, 4),
        drop=nn.Dropout(p),
        norm=nn.LayerNorm(4, eps=eps),
        second=nn.Linear(4, 4),
        head=nn.Linear(4, 3),
    )
    return nn.Sequential(layers)


def adam(weights, lr=0.01, betas=(0.9, 0.99)):
    return optim.AdamW(weights, lr=lr, betas=betas)


def schedule(optimizer, steps=40, ends=6):
    warmup = lr_scheduler.LinearLR(optimizer, total_iters=ends)
    rest = lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    return lr_scheduler.SequentialLR(optimizer, [warmup, rest], [ends])


def trainer(built=None, **options):
    options = {"optimizer": adam, "stages": 2, "scheduler_unit": "update"} | options
    return Trainer(network() if built is None else built, resumable=True, **options)


def loader(size=4, count=24):
    return DataLoader(TensorDataset(INPUTS[:count], TARGETS[:count]), size)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoint two batches behind the first epoch."""
    folder = tmp_path_factory.mktemp("changed")
    before = trainer(scheduler=schedule)
    checkpoints = Checkpoints(folder, every=1, keep=100)
    before.fit(loader(), epochs=2, progress=False, checkpoints=checkpoints)
    return folder / checkpoint_name(8, 1)


def resumed(saved, built=None, **options):
    """A trainer that goes on, and the warnings that it gave."""
    after = trainer(built, **{"scheduler": schedule} | options)
    with warnings.catch_warnings(record=True, action="always") as caught:
        point = after.resume(saved)
    assert (point.epoch, point.batch) == (1, 2)
    return after, "\n".join(str(each.message) for each in caught)


CHANGED = {
    "nothing": ({}, ""),
    "a number in another form": ({"method": FDG(shrink=np.float64(1))}, ""),
    "a rate": ({"optimizer": partial(adam, lr=0.1)}, "lr was 0.01, and is 0.1"),
    "a rate in a tensor": (
        {"optimizer": partial(adam, lr=torch.tensor(0.1, dtype=torch.double))},
        "lr was 0.01, and is 0.1",
    ),
    "momenta": ({"optimizer": partial(adam, betas=(0.5, 0.9))}, "and is [0.5, 0.9]"),
    "a schedule in another": (
        {"scheduler": partial(schedule, steps=10)},
        "stage 1: the checkpoint decides, so these changes have no effect:\n"
        "  - T_max was 40, and is 10",
    ),
    "a layer": ({"built": network(p=0.5)}, "layer 'drop' was Dropout(p=0.1, inplace=False)"),
    "eps of a layer": ({"built": network(eps=0.1)}, "layer 'norm' was LayerNorm((4,), eps"),
    "the loss": ({"loss": nn.CrossEntropyLoss(label_smoothing=0.3)}, "loss was cross_entropy"),
}


def test_an_object_without_a_text_is_known_by_what_it_holds():
    class Codec:
        def __init__(self, step):
            self.step = step

    assert as_text((Codec(1),)) == as_text((Codec(1),)) != as_text((Codec(2),))


@pytest.mark.parametrize("name", CHANGED)
def test_a_change_is_told_and_the_rate_of_the_checkpoint_is_used(saved, name):
    options, told = CHANGED[name]
    after, found = resumed(saved, **options)
    assert told in found
    assert bool(told) == bool(found)
    rates = [stage.updater.optimizer.param_groups[0]["initial_lr"] for stage in after.stages]
    assert rates == [0.01, 0.01]


def test_an_optimizer_with_its_weights_in_another_order_is_refused(saved):
    def reversed_adam(weights):
        return adam(list(weights)[::-1])

    with pytest.raises(CheckpointError, match=r"another network") as caught:
        trainer(scheduler=schedule, optimizer=reversed_adam).resume(saved)
    assert "stage 1: weight 0 of the optimizer was 'second.weight', and is" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (loader(count=20), "an epoch had 6 batches before the checkpoint, and has 5"),
        (loader(3, 18), "the first 2 batches .* have 6 samples, and had 8"),
        (Batches(InMemory(INPUTS[:18], TARGETS[:18]), 3), "batches .* 6 samples, and had 8"),
        ((pair for pair in loader(2)), "the first 2 batches .* have 4 samples, and had 8"),
    ],
    ids=["another length", "another size", "another size of Batches", "of no length"],
)
def test_other_data_within_an_epoch_are_refused_and_with_the_right_ones_it_goes_on(
    saved, data, told
):
    after, _ = resumed(saved)
    with pytest.raises(DataError, match=told):
        after.fit(data, epochs=2, progress=False)
    history = after.fit(loader(), epochs=2, progress=False)
    assert [(epoch.number, epoch.samples) for epoch in history] == [(0, 24), (1, 24)]


def test_an_epoch_that_has_begun_counts_and_other_data_between_two_epochs_are_told(saved):
    after, _ = resumed(saved)
    with pytest.raises(OptionError, match="has done 1 epochs and begun another one, and is to"):
        after.fit(loader(), epochs=1, progress=False)
    after = trainer(scheduler=schedule)
    after.resume(saved.with_name(checkpoint_name(6, 1)))
    with pytest.warns(UserWarning, match="had 6 batches .* and has 5 from now on"):
        after.fit(loader(count=20), epochs=2, progress=False)


HALVE = partial(lr_scheduler.ReduceLROnPlateau, factor=0.5, patience=0)


class Counting(optim.SGD):
    """An optimizer that counts in its groups, as some without schedules do."""

    def __init__(self, weights):
        super().__init__(weights, lr=0.1)
        self.param_groups[0]["k"] = 0

    def step(self, closure=None):
        self.param_groups[0]["k"] += 1
        self.param_groups[0]["lr"] *= 0.9
        return super().step(closure)


@pytest.mark.parametrize("options", [{"scheduler": HALVE}, {"optimizer": Counting}])
def test_what_the_training_itself_has_changed_is_not_told(tmp_path, options):
    options = options | {"scheduler_unit": "epoch"}
    before = trainer(**options)
    checkpoints = Checkpoints(tmp_path, every=0)
    before.fit(loader(), loader(), epochs=3, progress=False, checkpoints=checkpoints)
    rates = [s.updater.optimizer.param_groups[0]["lr"] for s in before.stages]
    for epochs in (4, 5):  # a training that was resumed as well
        after = trainer(**options)
        after.resume(tmp_path)  # without a warning
        assert [s.updater.optimizer.param_groups[0]["lr"] for s in after.stages] == rates
        after.fit(loader(), loader(), epochs=epochs, progress=False, checkpoints=checkpoints)
        rates = [s.updater.optimizer.param_groups[0]["lr"] for s in after.stages]


class Left:
    """Batches whose length is the number of those that are left; 5 after the first epoch."""

    def __init__(self, left=6):
        self.left = left

    def __len__(self):
        return self.left

    def __iter__(self):
        for batch in loader(count=4 * self.left):
            self.left -= 1
            yield batch
        self.left = 5


@pytest.mark.parametrize(("place", "left"), [((2, 0), 6), ((8, 1), 5)])
def test_the_length_is_that_of_the_beginning_of_the_epoch(tmp_path, place, left):
    before = trainer(scheduler=schedule)
    checkpoints = Checkpoints(tmp_path, every=2, keep=9)
    before.fit(Left(), epochs=2, progress=False, checkpoints=checkpoints)
    after = trainer(scheduler=schedule)
    after.resume(tmp_path / checkpoint_name(*place))
    after.fit(Left(left), epochs=2, progress=False)
    states = (each.network.state_dict().values() for each in (before, after))
    assert not different(*states)


def test_before_the_first_batch_no_weight_is_new():
    trainer(scheduler=schedule).state_dict()  # without a warning
