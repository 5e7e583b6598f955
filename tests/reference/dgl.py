"""DGL, decoupled greedy learning (arXiv 1901.08164, algorithm 1, synchronous).

Every module but the last trains on the loss of its own auxiliary head; nothing flows back, so
this plain loop has the trajectory of any pipeline with the same batch order.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reference._linearize import Batches, Loss, descend


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    heads: list[nn.Module],
    local: Callable[[int, Tensor, Tensor, Tensor], Tensor] | None = None,
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` and ``heads`` (one less) in place; return the losses of the last.

    The loss of module k but the last is local(k, its output, inputs of the network, targets),
    which uses its head, if ``local`` is given.
    """
    heads = [*heads, nn.Identity()]  # the last module's output goes to the loss directly
    sgd = [
        torch.optim.SGD([*module.parameters(), *head.parameters()], **options)
        for module, head in zip(modules, heads, strict=True)
    ]
    losses = []
    for x, y in batches:
        h = x
        for k, (module, head, opt) in enumerate(zip(modules, heads, sgd, strict=True)):
            h = module(h.detach())  # computed before the update, and sent on
            own = local is not None and k < len(modules) - 1
            value = descend(opt, local(k, h, x, y) if own else loss(head(h), y))
        losses.append(value)
    return losses
