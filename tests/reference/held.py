"""Delayed gradients of the whole network, as serial code without stages.

PipeDream-2BW (arXiv 2006.09503): W(t+1) = W(t) - lr * grad f(W(t-1); group t), the mean over M
batches. Vertical sync (arXiv 1806.03377): the gradient of batch t is that at the weights
``delay`` updates before.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn

from reference._linearize import Batches, Loss


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    accumulate: int = 1,
    delay: Callable[[int], int],
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place, with gradients delay(modules) updates old; return losses."""
    network, losses = nn.Sequential(*modules), []
    sgd = torch.optim.SGD(network.parameters(), **options)
    past = [copy.deepcopy(network)]  # past[t]: W(t)
    for start in range(0, len(batches), accumulate):
        group = batches[start : start + accumulate]
        then = past[max(len(past) - 1 - delay(len(modules)), 0)]
        for buffer, newest in zip(then.buffers(), network.buffers(), strict=True):
            buffer.copy_(newest)  # statistics have no versions
        then.zero_grad()
        for x, y in group:
            value = loss(then(x), y)
            value.backward()
            losses.append(value.item())
        for buffer, newest in zip(network.buffers(), then.buffers(), strict=True):
            buffer.copy_(newest)
        for p, q in zip(network.parameters(), then.parameters(), strict=True):
            p.grad = q.grad / len(group)
        sgd.step()
        past.append(copy.deepcopy(network))
    return losses
