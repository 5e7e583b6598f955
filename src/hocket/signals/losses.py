"""Losses and error counts of outputs whose last dimension is that of the classes."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from hocket.tree import Tree


class Loss(Protocol):
    """Loss of the network, a function of its outputs and targets."""

    def __call__(self, output: Tree, targets: Tree, /) -> Tensor:
        """Return the mean loss of a batch, a scalar."""


def cross_entropy(output: Tree, targets: Tree) -> Tensor:
    """Return the mean cross-entropy over samples, or over the tokens of all samples, a scalar.

    Args:
        output: Scores of the classes, (B, C) or (B, T, C).
        targets: Class indices, (B,) or (B, T).
    """
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def are_class_indices(output: Tree, targets: Tree) -> bool:
    """Return True if the targets are one class index for each prediction."""
    return (
        isinstance(output, Tensor)
        and isinstance(targets, Tensor)
        and not targets.is_floating_point()
        and output.shape[:-1] == targets.shape
    )


def count_errors(output: Tree, targets: Tree) -> tuple[int, int] | None:
    """Return the numbers of wrong and of all predictions; None without class indices."""
    if not are_class_indices(output, targets):
        return None
    return int((output.argmax(-1) != targets).sum()), targets.numel()
