"""Scale of a stage's backward, so that small gradients survive in float16."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

FIRST_SCALE = 65536.0
GROWTH = 2.0
BACKOFF = 0.5
GROWTH_INTERVAL = 2000
"""Constants of torch.amp.GradScaler, all of them powers of two but the interval."""


class LossScale:
    """Factor on the backward of a stage, which its gradients no longer have.

    Each stage has one. It is halved when a gradient overflows, and doubled after many that do
    not. Gradients of inputs leave it as float32, in which the small ones exist. At 1 an
    overflow is a fault of the batch.

    Args:
        first: The factor at the beginning, a power of two. A factor that begins at 1 stays 1,
            for precisions with the exponents of float32.

    Attributes:
        factor: The factor now, at least 1.
        most_backoffs: Batches in a row with an overflow that lead from the first factor to 1.
    """

    def __init__(self, first: float = 1.0) -> None:
        self.factor = first
        self.most_backoffs = round(math.log(first, 1 / BACKOFF))
        self._fixed = first == 1
        self._finite_count = 0  # backwards since it has changed

    @torch.no_grad()
    def unscale(
        self, weights: Iterable[nn.Parameter], sent: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """Divide the gradients of a backward by the factor.

        Not in place: the gradients of a weight and of an input may share their memory.

        Args:
            weights: Weights of the stage; their ``grad`` is replaced.
            sent: Gradients of inputs, (B, ...); None for an input without one.

        Returns:
            The gradients of inputs, with at least 32 bits if the factor may change.
        """
        if self._fixed:
            return tuple(sent)
        inverse = 1.0 / self.factor  # exact, as is the product
        trained = [(each, each.grad) for each in weights if each.grad is not None]
        gradients = [gradient for _, gradient in trained]
        unscaled = torch._foreach_mul(gradients, inverse) if gradients else []
        for (weight, _), gradient in zip(trained, unscaled, strict=True):
            weight.grad = gradient
        return tuple([None if each is None else _wide(each) * inverse for each in sent])

    def judge(self, *, finite: bool) -> bool:
        """Record a backward; return True if it overflowed because the factor was too large.

        Args:
            finite: True if all gradients are finite.
        """
        if self._fixed:
            return False
        if finite:
            self._finite_count += 1
            if self._finite_count == GROWTH_INTERVAL:
                self.factor, self._finite_count = self.factor * GROWTH, 0
            return False
        if self.factor <= 1:
            return False
        self.factor, self._finite_count = self.factor * BACKOFF, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the factor and the finite backwards since it changed; nothing if it stays."""
        if self._fixed:
            return {}
        return {"factor": self.factor, "finite_count": self._finite_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of another scale."""
        if state:
            self.factor, self._finite_count = state["factor"], state["finite_count"]


def _wide(gradient: Tensor) -> Tensor:
    return gradient.float() if gradient.dtype is torch.float16 else gradient
