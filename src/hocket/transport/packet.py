"""The tensors of one batch at one edge, with what the receiver must know of them.

A packet without values is that of a batch that is skipped: it crosses every edge like any
other, so that each is answered, and nobody learns from it.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from hocket.tree import Tree


@dataclass(frozen=True)
class Activation:
    """What a stage sends ahead: its output for one batch, and the batch's targets.

    Attributes:
        batch: The batch's number, counted from 0 over all epochs.
        epoch: The epoch it belongs to, counted from 0.
        values: The output, without a graph; None where the batch is skipped.
        differentiable: For each tensor of ``values``, whether the sender wants its gradient.
        targets: The targets of the batch; they travel with it.
        share: What part of the batch this is, where replicas of a stage share it.
    """

    batch: int
    epoch: int
    values: Tree
    differentiable: tuple[bool, ...]
    targets: Tree
    share: float = 1.0

    @property
    def skipped(self) -> bool:
        """Whether the batch is one that no stage learns from, from the sender on."""
        return self.values is None

    def without_values(self) -> "Activation":
        """The same without what it holds, for a batch that is skipped."""
        return replace(self, values=None, targets=None)


@dataclass(frozen=True)
class Gradient:
    """What a stage sends back: the gradient of each tensor it was sent, None for the others.

    No values at all are those of a batch that is skipped.
    """

    batch: int
    values: tuple[Tensor | None, ...] | None

    @property
    def skipped(self) -> bool:
        """Whether the batch is one that no stage learns from, from the sender back."""
        return self.values is None
