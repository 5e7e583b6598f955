"""Objectives and scores for outputs whose last dimension counts the classes."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from hocket.tree import Tree


class Loss(Protocol):
    """The objective of the last stage: outputs and targets in, one number out."""

    def __call__(self, output: Tree, targets: Tree, /) -> Tensor:
        """The mean loss of a batch."""


def cross_entropy(output: Tree, targets: Tree) -> Tensor:
    """Mean cross-entropy over samples, or over the tokens of all samples.

    Args:
        output: Scores, shape (B, C) or (B, T, C).
        targets: Class numbers, shape (B,) or (B, T).
    """
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def are_class_numbers(output: Tree, targets: Tree) -> bool:
    """Whether the targets are a class number for each prediction."""
    return (
        isinstance(output, Tensor)
        and isinstance(targets, Tensor)
        and not targets.is_floating_point()
        and output.shape[:-1] == targets.shape
    )


def count_errors(output: Tree, targets: Tree) -> tuple[int, int] | None:
    """How many predictions are wrong, of how many; None where there are no class numbers."""
    if not are_class_numbers(output, targets):
        return None
    return int((output.argmax(-1) != targets).sum()), targets.numel()
