"""Differentiation of a stage's backward roots into its weights and inputs."""

from contextlib import AbstractContextManager

import torch
from torch.autograd.graph import get_gradient_edge

from hocket.signals.signal import BackwardRoots
from hocket.transport.packet import Activation
from hocket.tree import Tree, map_tensors


def back_propagate(
    roots: BackwardRoots, share: float, guard: AbstractContextManager[object]
) -> None:
    """Add the gradients of the roots to ``grad`` of all weights and leaves below them.

    Args:
        roots: Roots and the gradients along which they are differentiated.
        share: Part of the batch that this process has. A loss is weighted with it; a gradient
            that was received is weighted already.
        guard: Context manager for the backward.
    """
    gradients = [
        torch.full_like(root, share) if gradient is None and share != 1 else gradient
        for root, gradient in zip(roots.roots, roots.gradients, strict=True)
    ]
    # A root without a graph: nothing of this stage or before it is trained.
    live = [
        (get_gradient_edge(root), gradient)
        for root, gradient in zip(roots.roots, gradients, strict=True)
        if root.requires_grad
    ]
    with torch.no_grad(), guard:
        if live:
            torch.autograd.backward([edge for edge, _ in live], [g for _, g in live])


def graph_leaves(activation: Activation) -> Tree:
    """Return the tensors of an activation as leaves of a new graph."""
    flags = iter(activation.differentiable)
    return map_tensors(
        lambda value: value.detach().requires_grad_(next(flags)), activation.values
    )
