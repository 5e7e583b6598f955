"""DGL, decoupled greedy learning (arXiv 1901.08164, algorithm 1, synchronous).

Every module but the last trains on the loss of its own auxiliary head; nothing flows back, so
this plain loop has the trajectory of any pipeline with the same batch order.
"""

import torch
from torch import nn

from reference._linearize import Batches, Loss


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    heads: list[nn.Module],
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` and ``heads`` (one less) in place; return the losses of the last."""
    heads = [*heads, nn.Identity()]  # the last module's output goes to the loss directly
    sgd = [
        torch.optim.SGD([*module.parameters(), *head.parameters()], **options)
        for module, head in zip(modules, heads, strict=True)
    ]
    losses = []
    for x, y in batches:
        h = x
        for module, head, opt in zip(modules, heads, sgd, strict=True):
            h = module(h.detach())  # computed before the update, and sent on
            value = loss(head(h), y)
            opt.zero_grad()
            value.backward()
            opt.step()
        losses.append(value.item())
    return losses
