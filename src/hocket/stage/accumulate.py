"""Accumulation of the gradients of several batches into one update."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hocket.methods.method import Reduce


class GradientAccumulator:
    """Sum of the gradients since the last update, kept apart from ``grad`` of the parameters.

    A backward leaves the gradients of one batch in ``grad``; ``add`` moves them here, so that
    ``grad`` is empty between actions and the gradients of each batch can be looked at alone.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], reduce: Reduce) -> None:
        self._parameters = parameters
        self._reduce = reduce
        self._sums: list[Tensor | None] = [None] * len(parameters)
        self.count = 0  # batches since the last update

    def add(self) -> list[Tensor | None]:
        """Move the gradients of one batch out of ``grad``, and return them."""
        gradients = [parameter.grad for parameter in self._parameters]
        for i, (total, gradient) in enumerate(zip(self._sums, gradients, strict=True)):
            if gradient is not None:
                self._sums[i] = gradient if total is None else total + gradient
        for parameter in self._parameters:
            parameter.grad = None
        self.count += 1
        return gradients

    def reduce(self) -> None:
        """Put the mean or the sum into ``grad`` and begin again with none."""
        if self._reduce == "mean" and self.count > 1:
            # Not in place: a sum of one gradient is that gradient, which the caller may hold.
            self._sums = [None if s is None else s / self.count for s in self._sums]
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            parameter.grad = total
        self._sums = [None] * len(self._parameters)
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the sums since the last update, and the number of batches in them."""
        return {"sums": list(self._sums), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of an accumulator of the same parameters."""
        self._sums = [
            None if total is None else total.to(parameter.device)
            for total, parameter in zip(state["sums"], self._parameters, strict=True)
        ]
        self.count = state["count"]


def total_norm(gradients: Sequence[Tensor | None]) -> Tensor:
    """Return the Euclidean norm of all gradients together, a scalar; 0 if there are none."""
    return torch.nn.utils.get_total_norm([g for g in gradients if g is not None])
