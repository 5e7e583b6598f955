"""Position and random state of a data loader, so that an epoch can be resumed.

`Batches` are served by number. Any other loader starts the epoch again with the same
random state, and batches that the network was already trained on are skipped.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from hocket.data.batches import Batches
from hocket.errors import DataError

T = TypeVar("T")


def loader_state(loader: object) -> dict[str, Any]:
    """Return the state that decides which batches a loader will serve.

    It consists of its epoch, the generators of a DataLoader and its sampler, and the global
    generators of PyTorch, NumPy and Python.
    """
    return {
        "torch": torch.get_rng_state(),
        "numpy": json.dumps(np.random.get_state(legacy=False), default=np.ndarray.tolist),
        "python": random.getstate(),
        **_own_state(loader),
    }


def restore_loader(state: dict[str, Any], loader: Any, *, begun: bool = False) -> None:
    """Restore the state of a loader and of the global generators from `loader_state`.

    Args:
        state: The state.
        loader: The loader.
        begun: True if batches of its epoch are used, so that the rest must be of the same one.

    Raises:
        DataError: The loader has other generators than the state, or another order.
    """
    own = _own_state(loader)
    order = own["order"]
    if begun and None not in (order, state["order"]) and order != state["order"]:
        raise DataError(
            f"the training data have {order}, and had {state['order']} before the checkpoint, "
            "which is within an epoch; give the data that the training began with"
        )
    if isinstance(loader, DataLoader) and {state["epoch"], own["epoch"]} == {0, 1}:
        # Let its workers run, or not yet, as then: their first epoch also draws their seed.
        loader._iterator = loader._get_iterator() if state["epoch"] else None
    torch.set_rng_state(state["torch"])
    np.random.set_state(json.loads(state["numpy"]))
    random.setstate(state["python"])
    _restore_own(loader, state)


@contextmanager
def preserve_loader(loader: Any, *, in_use: bool = False) -> Iterator[None]:
    """Context manager after which a loader serves the batches that it would have served.

    The global generators are another matter. If the loader is `in_use`, an iteration goes on.
    """
    state = _own_state(loader)
    # With persistent workers there is one iterator, which a second iter() would restart.
    set_aside = in_use and isinstance(loader, DataLoader)
    if set_aside:
        iterator, loader._iterator = loader._iterator, None
    try:
        yield
    finally:
        if set_aside:
            loader._iterator = iterator
        _restore_own(loader, state)


def _own_state(loader: object) -> dict[str, Any]:
    """Return the states of a loader's generators, the number of its next epoch, and its order.

    The latter two are None if they are unknown. Persistent workers have epoch 0 until they run.
    """
    epoch = order = None
    if isinstance(loader, Batches):
        epoch, order = loader.epoch, f"seed={loader.seed}, shuffle={loader.shuffle}"
    elif isinstance(loader, DataLoader) and loader.persistent_workers:
        epoch = int(loader._iterator is not None)
    generators = [generator.get_state() for generator in _generators(loader)]
    return {"generators": generators, "epoch": epoch, "order": order}


def _restore_own(loader: object, state: dict[str, Any]) -> None:
    """Restore the generators and the epoch of a loader.

    Raises:
        DataError: It has another number of generators.
    """
    generators, kept, epoch = _generators(loader), state["generators"], state["epoch"]
    if len(generators) != len(kept):
        raise DataError(
            f"the training data have {len(generators)} random generators of their own, and had "
            f"{len(kept)}; give a loader like that of the beginning"
        )
    for generator, before in zip(generators, kept, strict=True):
        generator.set_state(before)
    if isinstance(loader, Batches) and epoch is not None:
        loader.epoch = epoch


def remaining_batches(
    loader: Iterable[T], first: int, count: Callable[[T], int], samples: int
) -> Iterator[T]:
    """Return the batches of the next epoch from number `first` on.

    Args:
        loader: The loader.
        first: Number of the first batch; those before it are read and dropped, unless they
            are `Batches` of one size.
        count: Returns the number of samples of a batch.
        samples: Samples of the batches before.

    Raises:
        DataError: The epoch has fewer than `first` batches, or they have other numbers of
            samples.
    """
    if isinstance(loader, Batches) and samples == first * loader.batch_size:
        loader.epoch += 1
        return cast(Iterator[T], loader.serve(loader.epoch - 1, first))
    batches = iter(loader)

    def skip() -> Iterator[T]:
        skipped = list(map(count, islice(batches, first)))
        if len(skipped) < first:
            raise DataError(
                f"the training data have {len(skipped)} batches, and the training is to go on "
                f"after batch {first} of the epoch; give the data that it began with"
            )
        if sum(skipped) != samples:
            raise DataError(
                f"the first {first} batches of the training data have {sum(skipped)} samples, "
                f"and had {samples} before the checkpoint; give the data and the batch size "
                "that the training began with"
            )
        yield from chain(batches)  # which leaves a generator of the caller's open

    return skip()


def _generators(loader: object) -> list[torch.Generator]:
    """Return the generators of a DataLoader and of its samplers, each once."""
    batches = getattr(loader, "batch_sampler", None)
    samplers = [getattr(holder, "sampler", None) for holder in (loader, batches)]
    generators = [getattr(h, "generator", None) for h in (loader, batches, *samplers)]
    return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())
