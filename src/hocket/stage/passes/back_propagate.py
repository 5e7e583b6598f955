"""Differentiation of a stage's backward roots into its weights and inputs.

PyTorch's own function takes as long in Python, before its engine begins, as the backward of a
few small layers. Most of that is for tensors that a stage on a CPU rarely has. So it is called
for these only, and if a mode, a wrapper or the log looks on.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import has_torch_function

from hocket.errors import OptionError
from hocket.signals.signal import BackwardRoots
from hocket.stage.layers.compatibility import ForbidForward

_ENGINE: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
"""A private name of PyTorch, which no other release promises."""
_WHOLE = torch.autograd.backward
_GRAPH_LOG = logging.getLogger("torch.autograd.graph")
"""Log in which PyTorch tells of each node of a backward, at the level DEBUG."""


def bare_backward(
    roots: Sequence[Tensor], gradients: Sequence[Tensor | None], *, keep_graph: bool = False
) -> None:
    """Add the gradients of roots to ``grad`` of the leaves below them.

    Args:
        roots: Tensors of any shapes, each with a graph.
        gradients: A gradient for each, of its shape; None for 1, at a root of one number.
        keep_graph: Keep the graph for another backward.
    """
    pairs = list(zip(roots, gradients, strict=True))
    simple = all([_is_simple(*pair) for pair in pairs])
    if not simple or _ENGINE is None or _is_observed(roots):
        torch.autograd.backward(roots, gradients, retain_graph=keep_graph)
        return
    given = tuple([torch.ones_like(root) if g is None else g for root, g in pairs])
    # Without a graph of the gradients, and into the leaves.
    _ENGINE.run_backward(
        tuple(roots), given, keep_graph, False, (), allow_unreachable=True, accumulate_grad=True
    )


def _is_simple(root: Tensor, gradient: Tensor | None) -> bool:
    """Return True if there is nothing to check, and the engine needs no other thread."""
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


def back_propagate(
    roots: BackwardRoots,
    share: float,
    guard: ForbidForward | None,
    scale: float,
    *,
    keep_graph: bool,
) -> None:
    """Add the gradients of the roots to ``grad`` of all weights and leaves below them.

    Args:
        roots: Roots and the gradients along which they are differentiated.
        share: Part of the batch that this process has. A loss is weighted with it; a gradient
            that was received is weighted already.
        guard: Context manager for the backward, if layers must not be forwarded in it.
        scale: Factor on all gradients.
        keep_graph: Keep the graph for another backward.
    """
    # Roots with a graph, and what to begin with.
    live, given = [], []
    for root, gradient in zip(roots.roots, roots.gradients, strict=True):
        # A root without a graph: nothing of this stage or before it is trained.
        if not root.requires_grad:
            continue
        if gradient is None:  # of a loss
            start = None if share * scale == 1 else torch.full_like(root, share * scale)
        elif scale == 1:
            start = gradient
        else:  # scaled before it is rounded to what the backward computes in
            start = (gradient * scale).to(root.dtype)
        live.append(root)
        given.append(start)
    if not live:
        return

    # The guard would be off in a call with tensors, so it gets edges of the graph.
    if guard is None:
        bare_backward(live, given, keep_graph=keep_graph)
        return
    edges = [get_gradient_edge(root) for root in live]
    with torch.no_grad(), guard:
        torch.autograd.backward(edges, given, retain_graph=keep_graph)


def load_backward() -> None:
    """Let PyTorch import everything that it needs for a backward along a given gradient.

    That takes about as long as ``import torch``, and would count as work of the stage whose
    backward is the first.
    """
    torch.zeros((), requires_grad=True).clone().backward(torch.ones(()))


def require_graph(
    roots: BackwardRoots, stage: int, leaves: Iterable[Tensor], outputs: Sequence[Tensor]
) -> None:
    """Refuse a signal from which nothing can be learned, as PyTorch's backward does.

    An output whose gradient was received is another matter: the layers of it may be frozen.

    Args:
        roots: Roots of a backward.
        stage: Number of the stage.
        leaves: Weights and inputs of the stage.
        outputs: Outputs of the stage, (B, ...).

    Raises:
        OptionError: No root has a graph, although some of the leaves need a gradient.
    """
    received = [any([root is output for output in outputs]) for root in roots.roots]
    if roots.loss is None and all(received):
        return

    # The loss uses a tensor that only another stage has.
    if roots.loss is not None and roots.loss.is_meta:
        raise OptionError(
            f"stage {stage}: the loss uses a tensor of an earlier stage, which has no numbers "
            "here; return all that the loss needs from the forward of the network"
        )

    # Nothing of the stage leads to the loss.
    if any([root.requires_grad for root in roots.roots]):
        return
    if any(leaf.requires_grad for leaf in leaves):
        raise OptionError(
            f"stage {stage}: the {'signal' if roots.loss is None else 'loss'} does not depend "
            "on the output of the network, or was detached from it (detach, item, no_grad), so "
            "nothing can be learned from it; compute it from the output with operations of "
            "PyTorch"
        )
