"""Where the reading of the training data has come to, for it to be done again from there.

A loader is asked for batches by number where it can serve them so. Any other one is begun again
with the chance that it had, and the batches that were trained on already are dropped.
"""

import random
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch

from hocket.errors import DataError

T = TypeVar("T", covariant=True)


@runtime_checkable
class EpochLoader(Protocol[T]):
    """A loader whose batches depend on an epoch and a number alone.

    Attributes:
        epoch: The one that comes next; it counts on as an epoch is begun.
    """

    epoch: int

    def serve(self, epoch: int, first: int = 0) -> Iterator[T]:
        """The batches of an epoch from the first one asked for."""


def loader_state(loader: object) -> dict[str, Any]:
    """All that decides which batches a loader will give, as far as it can be known.

    That is its epoch, the generators of a DataLoader and its sampler, and the global generators
    of PyTorch, NumPy and Python.
    """
    kind, keys, place, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), place, *rest],
        "python": random.getstate(),
        "generators": [generator.get_state() for generator in _generators(loader)],
        "epoch": loader.epoch if isinstance(loader, EpochLoader) else None,
    }


def restore_loader(chance: dict[str, Any], loader: object) -> None:
    """Give a loader, and the global generators, the chance of then."""
    torch.set_rng_state(chance["torch"])
    kind, keys, *rest = chance["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(chance["python"])
    for generator, state in zip(_generators(loader), chance["generators"], strict=False):
        generator.set_state(state)
    if isinstance(loader, EpochLoader) and chance["epoch"] is not None:
        loader.epoch = chance["epoch"]


def remaining_batches(loader: Iterable[T], first: int) -> Iterator[T]:
    """The batches of the next epoch, but for so many at its beginning.

    Raises:
        DataError: It has not even these.
    """
    if first and isinstance(loader, EpochLoader):
        loader.epoch += 1
        return loader.serve(loader.epoch - 1, first)
    return _after(iter(loader), first)


def _after(batches: Iterator[T], first: int) -> Iterator[T]:
    for number in range(first):
        if next(batches, None) is None:
            raise DataError(
                f"the training data have {number} batches, and the training is to go on after "
                f"batch {first} of the epoch; give the data that it began with"
            )
    yield from batches


def _generators(loader: object) -> list[torch.Generator]:
    holders = [loader, getattr(loader, "sampler", None)]
    found = [getattr(holder, "generator", None) for holder in holders]
    return [each for each in found if isinstance(each, torch.Generator)]
