"""Differentiation of a stage's backward roots into its weights and inputs."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from hocket.errors import OptionError
from hocket.signals.signal import BackwardRoots
from hocket.stage.layers.compatibility import ForbidForward
from hocket.stage.passes.bare_backward import bare_backward


def back_propagate(
    roots: BackwardRoots, share: float, guard: ForbidForward | None, scale: float = 1.0
) -> None:
    """Add the gradients of the roots to ``grad`` of all weights and leaves below them.

    Args:
        roots: Roots and the gradients along which they are differentiated.
        share: Part of the batch that this process has. A loss is weighted with it; a gradient
            that was received is weighted already.
        guard: Context manager for the backward, if layers must not be forwarded in it.
        scale: Factor on all gradients.
    """
    # Roots with a graph, and what to begin with.
    live, given = [], []
    for root, gradient in zip(roots.roots, roots.gradients, strict=True):
        # A root without a graph: nothing of this stage or before it is trained.
        if root.requires_grad:
            live.append(root)
            given.append(_start(root, gradient, share, scale))
    if not live:
        return

    # The guard would be off in a call with tensors, so it gets edges of the graph.
    if guard is None:
        bare_backward(live, given)
        return
    edges = [get_gradient_edge(root) for root in live]
    with torch.no_grad(), guard:
        torch.autograd.backward(edges, given)


def load_backward() -> None:
    """Let PyTorch import everything that it needs for a backward along a given gradient.

    That takes about as long as ``import torch``, and would count as work of the stage whose
    backward is the first.
    """
    with torch.enable_grad():
        root = torch.zeros((), requires_grad=True)
        torch.autograd.backward(root.clone(), torch.ones(()))


def _start(root: Tensor, gradient: Tensor | None, share: float, scale: float) -> Tensor | None:
    """Return the gradient to begin with at a root; None means 1.

    Args:
        root: The root.
        gradient: The gradient that was received for it, of its shape; None for a loss.
        share: Part of the batch that this process has.
        scale: Factor on the gradient.
    """
    if gradient is None:
        return None if share * scale == 1 else torch.full_like(root, share * scale)
    # Scaled before it is rounded to what the backward computes in.
    return gradient if scale == 1 else (gradient * scale).to(root.dtype)


def require_graph(roots: BackwardRoots, stage: int, leaves: Iterable[Tensor]) -> None:
    """Refuse a loss from which nothing can be learned, as PyTorch's backward does.

    A gradient that was received is another matter: the layers that it is for may be frozen.

    Args:
        roots: Roots of a backward.
        stage: Number of the stage.
        leaves: Weights and inputs of the stage.

    Raises:
        OptionError: The loss has no graph, although some of the leaves need a gradient.
    """
    if roots.loss is None:
        return

    # The loss uses a tensor that only another stage has.
    if roots.loss.is_meta:
        raise OptionError(
            f"stage {stage}: the loss uses a tensor of an earlier stage, which has no numbers "
            "here; return all that the loss needs from the forward of the network"
        )

    # Nothing of the stage leads to the loss.
    if any([root.requires_grad for root in roots.roots]):
        return
    if any(leaf.requires_grad for leaf in leaves):
        raise OptionError(
            f"stage {stage}: the loss does not depend on the output of the network, or was "
            "detached from it (detach, item, no_grad), so nothing can be learned from it; "
            "compute it from the output with operations of PyTorch"
        )
