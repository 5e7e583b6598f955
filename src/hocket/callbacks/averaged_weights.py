"""Callback that keeps a moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from hocket.errors import OptionError, raise_problems
from hocket.options.ranges import wrong_counts
from hocket.stage.stage import Stage
from hocket.training.callback import Callback, TrainerView
from hocket.tree import is_inexact


class AveragedWeights(Callback):
    """Keeps the exponential moving average of the weights (EMA) of each stage.

    After each update of a stage its average becomes ``decay`` times itself plus ``1 - decay``
    times the weights; it begins with the weights after the first update that counts. Each
    process averages the weights of its stage, and checkpoints keep the averages.

    Args:
        decay: Share of the average that an update leaves, in [0, 1).
        start: Number of first updates of each stage that do not count.

    Raises:
        OptionError: ``decay`` or ``start`` is out of range.

    >>> averages = AveragedWeights(decay=0.99, start=100)  # for `fit(..., callbacks=...)`
    """

    def __init__(self, decay: float = 0.999, *, start: int = 0) -> None:
        problems = wrong_counts(0, start=start)
        if not (isinstance(decay, Real) and 0 <= decay < 1):
            problems.append(f"decay is {decay!r}; use a number in [0, 1)")
        raise_problems(OptionError, "weights cannot be averaged", problems)
        self._start = start
        self._decay = decay
        self._averages: dict[int, dict[str, Tensor]] = {}

    def on_start(self, trainer: TrainerView, state: dict[str, Any] | None) -> None:
        """Forget the averages of a ``fit`` before."""
        self._averages.clear()

    def on_update(self, trainer: TrainerView, stage: Stage) -> None:
        """Let the new weights of a stage count."""
        if stage.updater.version <= self._start:
            return
        weights = _weights_of(stage)
        if not weights:  # layers without any, such as Flatten alone
            return
        if stage.index in self._averages:
            averages = list(self._averages[stage.index].values())
            pairs = zip(weights.values(), averages, strict=True)
            update = get_ema_multi_avg_fn(self._decay)
            update(averages, [w.to(average.dtype) for w, average in pairs], 0)
        else:
            self._averages[stage.index] = {n: _begin(weight) for n, weight in weights.items()}

    @contextmanager
    def in_place(self, trainer: TrainerView) -> Iterator[None]:
        """Context manager in which the network has the averages as its weights.

        They are there to evaluate, to predict and to save, and not to train. Buffers, such as
        the statistics of BatchNorm, keep their values; so do weights without an average.
        Among several processes all enter it, and have the averages of all stages.

        Args:
            trainer: The trainer, which has been used.
        """
        stages = trainer.stages
        present = [{n: w.clone() for n, w in _weights_of(stage).items()} for stage in stages]
        for stage in stages:
            _fill(stage, self._averages.get(stage.index, {}))
        try:
            trainer.collect()
            yield
        finally:
            for stage, weights in zip(stages, present, strict=True):
                _fill(stage, weights)
        trainer.collect()

    def stage_tensors(self, stage: Stage) -> dict[str, Tensor]:
        """Return the averages of a stage, by the names of its weights."""
        return dict(self._averages.get(stage.index, {}))

    def load_stage_tensors(self, stage: Stage, tensors: dict[str, Tensor]) -> None:
        """Continue from the averages of a checkpoint."""
        weights = _weights_of(stage)
        self._averages[stage.index] = {  # another cut may join averages with other weights
            name: _begin(tensors.get(name, weight)).to(weight.device)
            for name, weight in weights.items()
        }


def _weights_of(stage: Stage) -> dict[str, Tensor]:
    named = stage.module.named_parameters()
    return {name: weight.detach() for name, weight in named if is_inexact(weight)}


def _begin(weight: Tensor) -> Tensor:
    """Return the average of one weight; 16 bits would round the small steps away."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32), copy=True)


@torch.no_grad()
def _fill(stage: Stage, values: dict[str, Tensor]) -> None:
    """Copy into the memory of weights; graphs of batches in flight take no notice."""
    for name, weight in stage.module.named_parameters():
        if name in values:
            weight.data.copy_(values[name])
