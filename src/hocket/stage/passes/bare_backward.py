"""The backward of PyTorch without what it does in Python before its engine begins.

That takes as long as the backward of a few small layers. Most of it is for tensors that a stage
on a CPU rarely has. PyTorch's function is called for these, and if a mode, a wrapper or the log
looks on.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function

_ENGINE: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
"""A private name of PyTorch, which no other release promises."""
_WHOLE = torch.autograd.backward
_GRAPH_LOG = logging.getLogger("torch.autograd.graph")
"""Log in which PyTorch tells of each node of a backward, at the level DEBUG."""


def bare_backward(roots: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add the gradients of roots to ``grad`` of the leaves below them.

    Args:
        roots: Tensors of any shapes, each with a graph.
        gradients: A gradient for each, of its shape; None for 1, at a root of one number.
    """
    simple = all([_is_simple(*pair) for pair in zip(roots, gradients, strict=True)])
    if not simple or _ENGINE is None or _is_observed(roots):
        torch.autograd.backward(roots, gradients)
        return
    given = tuple(
        [
            torch.ones_like(root) if gradient is None else gradient
            for root, gradient in zip(roots, gradients, strict=True)
        ]
    )
    # Without a graph of the gradients, and into the leaves.
    _ENGINE.run_backward(
        tuple(roots), given, False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def _is_simple(root: Tensor, gradient: Tensor | None) -> bool:
    """Return True if there is nothing to check, and the engine needs no other thread.

    Args:
        root: Where the backward begins.
        gradient: Its gradient; None for 1.
    """
    if not root.is_cpu or root.is_nested:
        return False
    if gradient is None:
        return root.numel() == 1 and root.is_floating_point()
    return gradient.shape == root.shape and gradient.dtype == root.dtype


def _is_observed(roots: Sequence[Tensor]) -> bool:
    """Return True if a mode, a class of tensors, a wrapper or the log sees the function."""
    return (
        has_torch_function(tuple(roots))
        or torch.autograd.backward is not _WHOLE
        or _GRAPH_LOG.isEnabledFor(logging.DEBUG)
    )
