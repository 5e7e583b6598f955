"""Random numbers and precision in which the passes of a stage compute.

Random numbers depend on seed, stage, batch and pass only. So a forward can be repeated without
keeping the state of a generator, stages in different processes draw the same numbers as in one
process, and the caller's random numbers are left alone.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import count
from typing import TypeVar, cast

import numpy
import torch
from numpy.random import mtrand

from hocket.program.action import Action
from hocket.stage.layers.known_layers import Draws
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.stage.steps import Steps, advance

T = TypeVar("T")
_NOTHING = nullcontext()


class PassContexts:
    """Context managers in which a stage computes."""

    def __init__(self, setup: Setup, parts: StageParts) -> None:
        self._stage = parts.index
        self._shared_seed = setup.seed  # of all replicas
        self._seed = setup.seed + parts.seed_offset
        self._device = setup.device
        self._casts = setup.precision != "fp32"
        self._autocast = setup.autocast

    def computing(
        self, batch: int, which: str, draws: Draws = "anything"
    ) -> AbstractContextManager[None]:
        """Return a context manager with the random numbers and the precision of one pass.

        Args:
            batch: Number of the batch.
            which: The pass: ``forward``, ``backward`` or ``learn``.
            draws: Generators that the pass may draw from.
        """
        seeded = seeded_rng(self._seed, self._stage, batch, which, self._device, draws)
        return _seeded_and_cast(seeded, self._autocast()) if self._casts else seeded

    def around_passes(self, action: Action, steps: Steps[T]) -> Steps[T]:
        """Do the steps of an action, with random numbers for remedies and optimizers that draw.

        All replicas draw the same ones, so that their weights stay alike.
        """
        key, result = (self._shared_seed, self._stage, action.batch), None
        for number in count():
            with seeded_rng(*key, f"{action.kind}{number}", self._device):
                result = advance(steps)
            if result is not None:
                break
            yield
        return cast(T, result)

    def predicting(self) -> AbstractContextManager[None]:
        """Return a context manager with the precision of the passes, which keeps no casts."""
        return _seeded_and_cast(_NOTHING, self._autocast())


@contextmanager
def _seeded_and_cast(
    seeded: AbstractContextManager[None], cast: torch.autocast
) -> Iterator[None]:
    try:
        with seeded, cast:
            yield
    finally:
        # Inside the caller's autocast it would keep casts of weights that change now.
        torch.clear_autocast_cache()


def seeded_rng(
    seed: int,
    stage: int,
    batch: int,
    pass_name: str,
    device: torch.device,
    draws: Draws = "anything",
) -> AbstractContextManager[None]:
    """Return a context manager that seeds the global generators for one pass.

    These are the generators of torch, numpy and Python's ``random``; they are restored at the
    end. Generators that a layer has for itself are not reached: `check_compatible` refuses them
    where that matters.

    Args:
        seed: Seed of the training.
        stage: Number of the stage.
        batch: Number of the batch.
        pass_name: Pass of the stage over the batch, or step of an action.
        device: Device of the stage.
        draws: Generators that the pass may draw from; others are left as they are.
    """
    if draws == "nothing":
        return _NOTHING

    # One key for each pass of each batch at each stage.
    words = f"{seed}/{stage}/{batch}/{pass_name}".encode()
    key = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")

    # Only the generators that the pass may draw from: reading each state takes time.
    seeded: AbstractContextManager[None] = _SeededTorch(key)
    if device.type == "cuda":
        seeded = _SeededOnGpu(key, device)
    return seeded if draws == "torch" else _SeededEverywhere(key, seeded)


class _SeededTorch:
    """Seeds PyTorch's generator of the CPU; entered for every pass, so by the shortest way."""

    __slots__ = ("_before", "_key")

    def __init__(self, key: int) -> None:
        self._key = key

    def __enter__(self) -> None:
        generator = torch.default_generator
        self._before = generator.get_state()
        # Not torch.manual_seed: it records a stack trace for each kind of device not in use.
        generator.manual_seed(self._key)

    def __exit__(self, *error: object) -> None:
        torch.default_generator.set_state(self._before)


class _SeededOnGpu(_SeededTorch):
    """Seeds the generator of a GPU as well."""

    __slots__ = ("_device", "_on_gpu")

    def __init__(self, key: int, device: torch.device) -> None:
        super().__init__(key)
        self._device = device

    def __enter__(self) -> None:
        self._on_gpu = torch.cuda.get_rng_state(self._device)
        super().__enter__()
        with torch.cuda.device(self._device):
            torch.cuda.manual_seed(self._key)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.cuda.set_rng_state(self._on_gpu, self._device)


class _SeededEverywhere:
    """Seeds the generators of PyTorch, NumPy and Python."""

    __slots__ = ("_key", "_numpy", "_numpy_state", "_python", "_torch")

    def __init__(self, key: int, seeded_torch: AbstractContextManager[None]) -> None:
        self._key = key
        self._torch = seeded_torch

    def __enter__(self) -> None:
        self._python = random.getstate()
        # Another generator takes the place of numpy's, which may be of a kind without a seed.
        self._numpy = mtrand.get_bit_generator()
        self._numpy_state = numpy.random.get_state(legacy=False)
        self._torch.__enter__()
        mtrand.set_bit_generator(_numpy_generator())
        random.seed(self._key)
        numpy.random.seed(self._key % 2**32)

    def __exit__(self, *error: object) -> None:
        mtrand.set_bit_generator(self._numpy)
        if self._numpy_state["has_gauss"]:  # a second number that it has drawn with the last
            numpy.random.set_state(self._numpy_state)
        random.setstate(self._python)
        self._torch.__exit__(None, None, None)


@cache
def _numpy_generator() -> numpy.random.MT19937:
    """Return the generator that passes are seeded with."""
    return numpy.random.MT19937(0)
