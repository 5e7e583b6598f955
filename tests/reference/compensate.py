"""DC-ASGD (arXiv 1609.08326): late gradients moved to the present weights.

Constant: g + lambda g g (w - w_old), equation 10. Adaptive (section 6): lambda is
lambda0 / sqrt(MeanSquare + 1e-7), MeanSquare <- m MeanSquare + (1 - m) g g.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def compensate(
    module: nn.Module, then: list[Tensor], sgd: Optimizer, *, strength: float
) -> None:
    for p, old in zip(module.parameters(), then, strict=True):
        p.grad = p.grad + strength * p.grad**2 * (p.data - old)


class Adaptive:
    def __init__(self, strength: float, decay: float) -> None:
        self.strength, self.decay = strength, decay
        self.mean_square: dict[nn.Parameter, Tensor] = {}

    def __call__(self, module: nn.Module, then: list[Tensor], sgd: Optimizer) -> None:
        for p, old in zip(module.parameters(), then, strict=True):
            square = self.mean_square.get(p, 0) * self.decay + (1 - self.decay) * p.grad**2
            self.mean_square[p] = square
            p.grad = p.grad + self.strength / torch.sqrt(square + 1e-7) * p.grad**2 * (
                p.data - old
            )


def constant(strength: float) -> partial[None]:
    return partial(compensate, strength=strength)
