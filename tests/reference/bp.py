"""Back-propagation: the composed network, one optimizer, no delay anywhere (K = 1).

Every delayed method of this folder equals it without delay; the baseline of DDG, FR, FDG and
ADL (arXiv 1804.10574, 1807.04511, 1906.09108, 2012.03747).
"""

import torch
from torch import nn

from reference._linearize import Batches, Loss


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    accumulate: int = 1,
    reduce: str = "mean",
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place; return the loss of each batch."""
    net = nn.Sequential(*modules)
    sgd = torch.optim.SGD(net.parameters(), **options)
    losses = []
    for start in range(0, len(batches), accumulate):
        group = batches[start : start + accumulate]
        for x, y in group:
            value = loss(net(x), y)
            value.backward()
            losses.append(value.item())
        for p in net.parameters():
            p.grad /= {"mean": len(group), "sum": 1}[reduce]
        sgd.step()
        sgd.zero_grad()
    return losses
