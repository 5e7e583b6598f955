"""Values that cross an edge: a tensor, or nested tuples, lists and dicts of tensors.

One place knows how they are taken apart, so that everything else sees a list of tensors.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from torch import Tensor
from torch.utils import _pytree as pytree

Tree: TypeAlias = Any
"""A tensor, or nested tuples, lists and dicts whose leaves are tensors, numbers or None."""


def tensors(tree: Tree) -> list[Tensor]:
    """The tensors among the leaves, in the order of the structure.

    >>> import torch
    >>> len(tensors((torch.zeros(1), {"mask": torch.ones(1), "scale": 2.0})))
    2
    """
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def copy_tensors(tree: Tree) -> Tree:
    """The same structure with tensors of its own, which may be edited in place."""
    return map_tensors(Tensor.clone, tree)


def map_tensors(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The same structure with every tensor changed."""
    return cast(Tree, pytree.tree_map_only(Tensor, change, tree))


def leaf(value: Tensor) -> Tensor:
    """The value where a graph begins, as a stage receives it from the one before."""
    return value.detach().requires_grad_(value.requires_grad)
