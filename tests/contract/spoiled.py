"""Networks that become NaN where a batch says so: in one stage, forward or backward."""

from typing import Any

import torch
from torch import Tensor, nn

from contract.small import CLASSES, SHAPES, Batches, data

FEATURES = 5
FORWARD, BACKWARD = 0.25, 0.75
"""What is added to the number of a stage in the first column of a batch's input."""


class _Spoil(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, forward: bool, backward: bool) -> Tensor:
        ctx.backward_too = backward
        return values * torch.nan if forward else values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        return gradients[0] * torch.nan if ctx.backward_too else gradients[0], None, None


class Brittle(nn.Module):
    """A layer with BatchNorm that keeps the first column, and breaks where that says so."""

    def __init__(self, stage: int, dropout: float) -> None:
        super().__init__()
        self.stage = stage
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES)

    def forward(self, marked: Tensor) -> Tensor:
        """(B, 1 + D) to (B, 1 + D)."""
        mark, values = marked[:, :1], marked[:, 1:]
        code = float(mark[0].detach())
        # Before BatchNorm, whose statistics are to stay clean.
        values = _Spoil.apply(
            self.linear(values), code == self.stage + FORWARD, code == self.stage + BACKWARD
        )
        return torch.cat([mark, self.dropout(self.norm(values).tanh())], 1)


def brittle(stages: int, *, dropout: float = 0.0) -> list[nn.Module]:
    """Stages of a brittle layer each; the last one drops the mark."""
    torch.manual_seed(0)
    built = [nn.Sequential(Brittle(k, dropout)) for k in range(stages)]
    built[-1].append(nn.Linear(1 + FEATURES, CLASSES))
    return [stage.double() for stage in built]


SHAPES[brittle] = (1 + FEATURES,)


def marked(count: int, marks: dict[int, float]) -> Batches:
    """Batches of which some are spoiled, each by a stage plus ``FORWARD`` or ``BACKWARD``."""
    batches = data(brittle, count)
    for number, (x, _) in enumerate(batches):
        x[:, 0] = marks.get(number, -1.0)
    return batches
