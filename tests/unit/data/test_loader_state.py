"""The rest of an epoch is the same after a resume, for any loader."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from hocket.data.batches import Batches, InMemory
from hocket.data.loader_state import (
    loader_state,
    preserve_loader,
    remaining_batches,
    restore_loader,
)
from hocket.errors import DataError


class Drawing:
    """Loader that draws from every global generator."""

    def __iter__(self):
        for _ in range(6):
            yield torch.rand(2), random.random(), np.random.rand()


def noisy(inputs, rng):
    return inputs + torch.rand(inputs.shape, generator=rng)


NUMBERS = torch.arange(12.0)
ROWS = TensorDataset(NUMBERS)
LOADERS = {
    "a list": lambda: [1, 2, 3, 4, 5, 6],
    "Hocket's own": lambda: Batches(InMemory(NUMBERS, NUMBERS, noisy), 2, seed=3, shuffle=True),
    "global generators": Drawing,
    "a DataLoader": lambda: DataLoader(ROWS, 2, shuffle=True),
    "a DataLoader with a generator": lambda: DataLoader(
        ROWS, 2, shuffle=True, generator=torch.Generator().manual_seed(1)
    ),
    "a DataLoader with persistent workers": lambda: DataLoader(
        ROWS, 2, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "a sampler with a generator": lambda: DataLoader(ROWS, 2, sampler=drawing_rows()),
    "a batch sampler": lambda: DataLoader(
        ROWS, batch_sampler=BatchSampler(drawing_rows(), 2, drop_last=False)
    ),
}


def drawing_rows():
    return RandomSampler(ROWS, generator=torch.Generator().manual_seed(1))


def remaining_from(loader, first):
    """Return the batches of an epoch from one on, each of which counts as two samples."""
    return remaining_batches(loader, first, lambda batch: 2, 2 * first)


@pytest.mark.parametrize("first", [0, 1, 4])
@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_this_epoch_and_the_next_are_the_same_after_a_resume(make, first, earlier):
    loader, another = make(), make()
    list(remaining_from(loader if earlier else another, 0))  # an epoch before
    state = loader_state(loader)
    whole = list(remaining_from(loader, 0))
    after = list(remaining_from(loader, 0))
    restore_loader(state, another)
    assert str(list(remaining_from(another, first))) == str(whole[first:])
    assert str(list(remaining_from(another, 0))) == str(after)


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "Philox", "SFC64"])
def test_any_generator_of_numpy_draws_the_same_after_a_resume(kind):
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(getattr(np.random, kind)(1))
        np.random.standard_normal()  # which keeps a second one
        state = loader_state([])
        drawn = np.random.standard_normal(9).tolist()
        restore_loader(state, [])
        assert np.random.standard_normal(9).tolist() == drawn
    finally:
        np.random.set_bit_generator(before)


def test_a_shorter_epoch_and_a_loader_with_other_generators_are_refused():
    with pytest.raises(DataError, match=r"have 2 batches, and .* after batch 3 of the epoch"):
        list(remaining_from([1, 2], 3))
    state = loader_state(LOADERS["a DataLoader with a generator"]())
    with pytest.raises(DataError, match="have 0 random generators of their own, and had 1"):
        restore_loader(state, [1, 2])


@pytest.mark.parametrize("given", [{"seed": 4}, {"shuffle": False}])
def test_another_order_is_refused_within_an_epoch(given):
    loader = LOADERS["Hocket's own"]()
    other = loader.with_options(**given)
    restore_loader(loader_state(loader), other)  # for a whole epoch
    with pytest.raises(DataError, match=r"seed=\d, shuffle=\w+, and had seed=3, shuffle=True"):
        restore_loader(loader_state(loader), other, begun=True)


def test_batches_that_are_skipped_are_not_transformed():
    transformed = []

    def record(inputs, rng):
        transformed.append(inputs.tolist())
        return inputs

    rows = torch.arange(6.0)
    list(remaining_from(Batches(InMemory(rows, rows, record), 2), 2))
    assert transformed == [[4.0, 5.0]]


@pytest.mark.parametrize("name", [name for name in LOADERS if "global" not in name])
def test_a_loader_that_is_read_in_between_serves_what_it_would_have_served(name):
    """Before an epoch, and within one."""
    served = []
    for loader, is_read in ((LOADERS[name](), True), (LOADERS[name](), False)):
        for epoch in range(2):
            torch.manual_seed(epoch)
            batches = iter(loader)
            served.append([next(batches)])
            with preserve_loader(loader, in_use=True):
                list(loader if is_read else ())
            served[-1] += batches
    assert str(served[:2]) == str(served[2:])


def test_a_generator_that_is_not_read_to_its_end_stays_open():
    numbers = (number for number in range(3))
    rest = remaining_from(numbers, 0)
    next(rest)
    rest.close()
    assert list(numbers) == [1, 2]
