"""How far a delayed gradient is from the true one, batch by batch.

The true gradient of a batch is that of the whole network's loss at the weights that all stages
have when the stage is about to use its late gradient (the error tracking of PETRA, ICLR 2025).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from hocket.engine.trace import Event
from hocket.method import Loss
from hocket.stage.stage import Stage
from hocket.tree import Tree


@dataclass(frozen=True)
class Comparison:
    """One late gradient beside the true one.

    Attributes:
        stage: The stage.
        batch: The batch.
        cosine: Cosine of the angle between the two, over all weights of the stage.
        ratio: Norm of the late gradient over the norm of the true one.
    """

    stage: int
    batch: int
    cosine: float
    ratio: float


Listener: TypeAlias = Callable[[Comparison], None]


class Compare:
    """Watches a serial engine and compares the gradients of every n-th batch.

    Each comparison costs a forward and a backward of the whole network for each stage.
    """

    def __init__(self, every: int, loss: Loss, listener: Listener) -> None:
        self.stages: Sequence[Stage] = ()  # known once the engine is built
        self._every = every
        self._loss = loss
        self._listener = listener
        self._batches: dict[int, tuple[Tree, Tree]] = {}
        self._left: dict[int, int] = {}  # stages whose gradient of a batch is still to come

    def __call__(self, event: Event, stage: Stage) -> None:
        """Keep the inputs of a batch when it enters; compare when a gradient is there."""
        batch = event.action.batch
        if batch % self._every:
            return
        if event.action.kind == "F" and stage.index == 0:
            activation = stage.pending[batch].activation
            self._batches[batch] = activation.values, activation.targets
            self._left[batch] = len(self.stages)
        elif event.action.kind == "B":
            self._listener(self._compare(stage, batch))
            self._left[batch] -= 1
            if not self._left[batch]:
                del self._batches[batch], self._left[batch]

    def _compare(self, stage: Stage, batch: int) -> Comparison:
        trained = [p for p in stage.module.parameters() if p.requires_grad]
        late = _flat(stage.gradients[: len(trained)], trained)
        true = _flat(self._true(stage, batch, trained), trained)
        product = late.norm() * true.norm()
        return Comparison(
            stage=stage.index,
            batch=batch,
            cosine=float(late @ true / product) if product else 0.0,
            ratio=float(late.norm() / true.norm()) if true.norm() else float("inf"),
        )

    def _true(
        self, stage: Stage, batch: int, trained: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        value, targets = self._batches[batch]
        for each in self.stages:
            value = each.replay(batch, value)
        loss = self._loss(value, targets)
        return torch.autograd.grad(loss, trained, allow_unused=True) if trained else ()


def _flat(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """All gradients as one vector in float64, zeros where there is none."""
    parts = [
        torch.zeros(p.numel(), dtype=torch.float64)
        if g is None
        else g.detach().cpu().double().flatten()
        for g, p in zip(gradients, like, strict=True)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
