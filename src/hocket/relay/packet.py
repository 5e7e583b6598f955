"""The tensors of one batch at one edge, with what the receiver must know of them."""

from dataclasses import dataclass

from torch import Tensor

from hocket.tree import Tree


@dataclass(frozen=True)
class Activation:
    """What a stage sends ahead: its output for one batch, and the batch's targets.

    Attributes:
        batch: The batch's number, counted from 0 over all epochs.
        epoch: The epoch it belongs to, counted from 0.
        values: The output, without a graph.
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


@dataclass(frozen=True)
class Gradient:
    """What a stage sends back: the gradient of each tensor it was sent, None for the others."""

    batch: int
    values: tuple[Tensor | None, ...]
