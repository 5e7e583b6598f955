"""Delay compensation: a stale gradient is moved to the present weights by a cheap curvature.

Reference: Zheng et al., Asynchronous SGD with delay compensation, ICML 2017, arXiv 1609.08326,
equation 10 and algorithm 2. Plain version: ``tests/reference/compensate.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hocket.options.ranges import Range
from hocket.remedies.remedy import Remedy, StageInfo, StageRemedy, Weights, dense_gradient


@dataclass(frozen=True, kw_only=True)
class Compensate(Remedy):
    """Add strength g g (w - v) to each stale gradient g, where v are its forward's weights.

    Attributes:
        strength: The paper's lambda; 0 for no effect.

    Raises:
        OptionError: It is negative.

    A gradient of 2 whose weight has moved by 1:

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weights = Weights([weight], torch.optim.SGD([weight], lr=0.1))
    >>> stage = StageInfo(index=0, count=3, staleness=2.0)
    >>> weight.grad = torch.tensor([2.0])
    >>> Compensate(strength=0.5).attach(stage, weights).correct_gradient([torch.zeros(1)])
    >>> weight.grad
    tensor([4.])
    """

    name: ClassVar[str] = "compensate"
    paper: ClassVar[str] = "arXiv 1609.08326"
    ranges: ClassVar[Mapping[str, Range]] = {"strength": Range(least=0)}
    compares: ClassVar[bool] = True
    corrects: ClassVar[bool] = True
    resizes: ClassVar[bool] = True
    strength: float = 0.04

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the base."""
        return _Constant(self.strength, stage, weights)


@dataclass(frozen=True, kw_only=True)
class CompensateAdaptively(Compensate):
    """Add strength / sqrt(m) g g (w - v) to each stale gradient g, where m averages g g.

    Attributes:
        strength: The paper's lambda_0; 0 for no effect.
        decay: Part of the past in m.

    Raises:
        OptionError: A number is out of its range.

    A first gradient of 1 whose weight has moved by 1:

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weights = Weights([weight], torch.optim.SGD([weight], lr=0.1))
    >>> stage = StageInfo(index=0, count=3, staleness=2.0)
    >>> weight.grad = torch.tensor([1.0])
    >>> remedy = CompensateAdaptively(strength=0.5, decay=0.75)
    >>> remedy.attach(stage, weights).correct_gradient([torch.zeros(1)])
    >>> weight.grad
    tensor([2.0000])
    """

    name: ClassVar[str] = "compensate-adaptive"
    ranges: ClassVar[Mapping[str, Range]] = {
        "strength": Range(least=0),
        "decay": Range(least=0, below=1),
    }
    strength: float = 2.0
    decay: float = 0.95
    copies = 1

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the base."""
        return _Adaptive(self.strength, self.decay, stage, weights)


EPSILON = 1e-7
"""Added to the mean square before its root, as in the authors' setting."""


class _Constant(StageRemedy):
    def __init__(self, strength: float, stage: StageInfo, weights: Weights) -> None:
        self._strength = strength
        self._stage = stage.index
        self._parameters = weights.parameters

    def correct_gradient(self, forward_weights: Sequence[Tensor] | None) -> None:
        """Move ``grad`` from the weights of the forward to the present ones."""
        if forward_weights is None:
            return
        for weight, old in zip(self._parameters, forward_weights, strict=True):
            if weight.grad is not None:
                gradient = dense_gradient(weight, self._stage)
                move = weight.detach() - old
                weight.grad = gradient + self._strength * gradient * gradient * move


class _Adaptive(_Constant):
    def __init__(
        self, strength: float, decay: float, stage: StageInfo, weights: Weights
    ) -> None:
        super().__init__(strength, stage, weights)
        self._decay = decay
        self._squares = [torch.zeros_like(weight.detach()) for weight in weights.parameters]

    def correct_gradient(self, forward_weights: Sequence[Tensor] | None) -> None:
        """Average the squares of ``grad``, and move it from the forward's weights."""
        olds = self._parameters if forward_weights is None else forward_weights
        for weight, old, mean in zip(self._parameters, olds, self._squares, strict=True):
            if weight.grad is None:
                continue
            gradient = dense_gradient(weight, self._stage)
            square = gradient * gradient
            mean.mul_(self._decay).add_(square, alpha=1 - self._decay)
            if forward_weights is not None:
                strength = self._strength / (mean + EPSILON).sqrt()
                weight.grad = gradient + strength * square * (weight.detach() - old)

    def state_dict(self) -> dict[str, Any]:
        return {"squares": self._squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mean, saved in zip(self._squares, state["squares"], strict=True):
            mean.copy_(saved)


REMEDIES = {Compensate.name: Compensate, CompensateAdaptively.name: CompensateAdaptively}
