"""Trees: a tensor, or nested tuples, lists and dicts of tensors, as stages exchange them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from torch import Tensor
from torch.utils import _pytree as pytree

Tree: TypeAlias = Any
"""A tensor, or nested tuples, lists and dicts whose leaves are tensors, numbers or None."""

_PLAIN_LEAVES = frozenset([bool, int, float, str, type(None)])
"""Types of leaves that need no look-up in pytree."""


def tensors(tree: Tree) -> list[Tensor]:
    """Return the tensors among the leaves, in the order of the structure.

    >>> import torch
    >>> len(tensors((torch.zeros(1), {"mask": torch.ones(1), "scale": 2.0})))
    2
    """
    if isinstance(tree, Tensor):  # as nearly always, and in a fraction of the time
        return [tree]
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def count_samples(tree: Tree) -> int:
    """Return the size of the first dimension that a tensor has; 0 if there is none.

    >>> import torch
    >>> count_samples({"loss": torch.tensor(1.0), "logits": torch.zeros(8, 2)})
    8
    """
    return next((tensor.shape[0] for tensor in tensors(tree) if tensor.dim()), 0)


def count_batch(targets: Tree, values: Tree) -> int:
    """Return the number of samples of a batch; 0 if nothing shows it.

    It is the number of targets, unless these are several tensors of different lengths, or of
    one that nothing else has, as boxes in each of several images.

    Args:
        targets: Targets of the batch, with tensors of shape (B, ...) if there are any.
        values: Inputs or outputs, with tensors of shape (B, ...).

    >>> import torch
    >>> boxes = [torch.zeros(50, 4), torch.zeros(1, 4)]
    >>> count_batch(boxes, torch.zeros(2, 3)), count_batch(torch.zeros(8), torch.zeros(2, 3))
    (2, 8)
    """
    lengths = [len(tensor) for tensor in tensors(targets) if tensor.dim()]
    samples = count_samples(values)
    if not lengths or not samples:
        return lengths[0] if lengths else samples
    same = lengths.count(lengths[0]) == len(lengths)
    known = any(lengths[0] in value.shape[:2] for value in tensors(values))
    return lengths[0] if len(lengths) == 1 or (same and known) else samples


def take_samples(tree: Tree, part: slice, batch: int) -> Tree:
    """Return a part of a batch: of each tensor (B, ...), and of lists with an entry a sample.

    Args:
        tree: The batch.
        part: Its samples.
        batch: Number of samples, B. A list of B tensors that all have the length B is taken
            for B tensors of whole batches, one of B mappings for one of a sample each.

    >>> import torch
    >>> take_samples((torch.arange(2), [torch.zeros(3), torch.ones(1)]), slice(1, 2), 2)
    (tensor([1]), [tensor([1.])])
    """
    if isinstance(tree, Tensor):
        return tree[part] if tree.dim() and len(tree) == batch else tree
    if isinstance(tree, list) and len(tree) == batch:
        lengths = {len(tensor) for tensor in tensors(tree) if tensor.dim()}
        if lengths != {batch} or all(isinstance(member, Mapping) for member in tree):
            return tree[part]
    members, structure = pytree.tree_flatten(tree, is_leaf=lambda each: each is not tree)
    if structure.is_leaf():
        return tree  # an object without tensors
    return unflatten([take_samples(member, part, batch) for member in members], structure)


def leaves(tree: Tree) -> list[Any]:
    """Return all leaves, in the order of the structure.

    >>> leaves((1, {"a": None, "b": [2]}))
    [1, None, 2]
    """
    found: list[Any] = []
    _append_leaves(tree, found)
    return found


def _append_leaves(tree: Tree, found: list[Any]) -> None:
    """Append all leaves to a list; pytree looks only at unusual containers."""
    kind = type(tree)
    if kind is tuple or kind is list:
        for item in tree:
            _append_leaves(item, found)
    elif kind is dict:
        for item in tree.values():
            _append_leaves(item, found)
    elif kind in _PLAIN_LEAVES or isinstance(tree, Tensor):
        found.append(tree)
    else:
        found += pytree.tree_leaves(tree)


def map_leaves(change: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return the same structure with every leaf replaced by ``change(leaf)``."""
    return cast(Tree, pytree.tree_map(change, tree))


def flatten(tree: Tree) -> tuple[list[Any], Any]:
    """Return the leaves, and the structure without them, which can be compared and hashed."""
    return pytree.tree_flatten(tree)


def unflatten(leaves: Sequence[Any], structure: Any) -> Tree:
    """Return a tree from its leaves and its structure."""
    return cast(Tree, pytree.tree_unflatten(leaves, structure))


def copy_tensors(tree: Tree) -> Tree:
    """Return the same structure with copies of the tensors, which may be edited in place."""
    return map_tensors(Tensor.clone, tree)


def map_tensors(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Return the same structure with every tensor replaced by ``change(tensor)``."""
    # These make up nearly all trees; pytree takes 40 us for one tensor.
    kind = type(tree)
    if isinstance(tree, Tensor):
        return change(tree)
    if kind is tuple:
        return tuple([map_tensors(change, item) for item in tree])
    if kind is list:
        return [map_tensors(change, item) for item in tree]
    if kind is dict:
        return {key: map_tensors(change, item) for key, item in tree.items()}
    if kind in _PLAIN_LEAVES:
        return tree
    return cast(Tree, pytree.tree_map_only(Tensor, change, tree))


def is_inexact(tensor: Tensor) -> bool:
    """Return True for floating point and complex numbers, which may have gradients."""
    return tensor.is_floating_point() or tensor.is_complex()


def as_leaf(tensor: Tensor) -> Tensor:
    """Return a tensor as a leaf of a new graph, of the same shape and ``requires_grad``."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
