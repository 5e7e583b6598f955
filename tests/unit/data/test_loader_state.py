"""The rest of an epoch is the same after a resume, for any loader."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hocket.data.batches import Batches, InMemory
from hocket.data.loader_state import loader_state, remaining_batches, restore_loader
from hocket.errors import DataError


class Drawing:
    """Loader that draws from every global generator."""

    def __iter__(self):
        for _ in range(6):
            yield torch.rand(2), random.random(), np.random.rand()


def noisy(inputs, rng):
    return inputs + torch.rand(inputs.shape, generator=rng)


def hocket_loader():
    rows = torch.arange(12.0)
    return Batches(InMemory(rows, rows, noisy), 2, seed=3, shuffle=True)


def shuffling(**options):
    return DataLoader(TensorDataset(torch.arange(12.0)), 2, shuffle=True, **options)


LOADERS = {
    "a list": lambda: [1, 2, 3, 4, 5, 6],
    "Hocket's own": hocket_loader,
    "global generators": Drawing,
    "a DataLoader": shuffling,
    "a DataLoader with a generator": lambda: shuffling(
        generator=torch.Generator().manual_seed(1)
    ),
}


@pytest.mark.parametrize("first", [0, 1, 4])
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_this_epoch_and_the_next_are_the_same_after_a_resume(make, first):
    loader = make()
    list(remaining_batches(loader, 0))  # an epoch before
    state = loader_state(loader)
    whole = list(remaining_batches(loader, 0))
    after = list(remaining_batches(loader, 0))
    another = make()
    restore_loader(state, another)
    assert str(list(remaining_batches(another, first))) == str(whole[first:])
    assert str(list(remaining_batches(another, 0))) == str(after)


def test_epochs_that_are_too_short_are_refused():
    with pytest.raises(DataError, match=r"have 2 batches, and .* after batch 3 of the epoch"):
        list(remaining_batches([1, 2], 3))


def test_batches_that_are_skipped_are_not_transformed():
    transformed = []

    def record(inputs, rng):
        transformed.append(inputs.tolist())
        return inputs

    rows = torch.arange(6.0)
    list(remaining_batches(Batches(InMemory(rows, rows, record), 2), 2))
    assert transformed == [[4.0, 5.0]]
