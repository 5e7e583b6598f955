"""Position and random state of a data loader, so that an epoch can be resumed.

An `EpochLoader` serves batches by number. Any other loader starts the epoch again with the same
random state, and batches that the network was already trained on are skipped.
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
    """Loader whose batches depend only on the numbers of epoch and batch.

    Attributes:
        epoch: Number of the next epoch; it increases when an epoch starts.
    """

    epoch: int

    def serve(self, epoch: int, first: int = 0) -> Iterator[T]:
        """Yield the batches of an epoch, starting with number `first`."""


def loader_state(loader: object) -> dict[str, Any]:
    """Return the state that decides which batches a loader will serve.

    It consists of its epoch, the generators of a DataLoader and its sampler, and the global
    generators of PyTorch, NumPy and Python.
    """
    kind, keys, place, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), place, *rest],
        "python": random.getstate(),
        "generators": [generator.get_state() for generator in _generators(loader)],
        "epoch": loader.epoch if isinstance(loader, EpochLoader) else None,
    }


def restore_loader(state: dict[str, Any], loader: object) -> None:
    """Restore the state of a loader and of the global generators from `loader_state`."""
    torch.set_rng_state(state["torch"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
    for generator, kept in zip(_generators(loader), state["generators"], strict=False):
        generator.set_state(kept)
    if isinstance(loader, EpochLoader) and state["epoch"] is not None:
        loader.epoch = state["epoch"]


def remaining_batches(loader: Iterable[T], first: int) -> Iterator[T]:
    """Return the batches of the next epoch from number `first` on.

    Raises:
        DataError: The epoch has fewer than `first` batches.
    """
    if first and isinstance(loader, EpochLoader):
        loader.epoch += 1
        return loader.serve(loader.epoch - 1, first)
    return _skip(iter(loader), first)


def _skip(batches: Iterator[T], first: int) -> Iterator[T]:
    for number in range(first):
        if next(batches, None) is None:
            raise DataError(
                f"the training data have {number} batches, and the training is to go on after "
                f"batch {first} of the epoch; give the data that it began with"
            )
    yield from batches


def _generators(loader: object) -> list[torch.Generator]:
    holders = [loader, getattr(loader, "sampler", None)]
    generators = [getattr(holder, "generator", None) for holder in holders]
    return [entry for entry in generators if isinstance(entry, torch.Generator)]
