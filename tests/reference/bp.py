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
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place; return the loss of each batch."""
    net = nn.Sequential(*modules)
    sgd = torch.optim.SGD(net.parameters(), **options)
    losses = []
    for x, y in batches:
        value = loss(net(x), y)
        sgd.zero_grad()
        value.backward()
        sgd.step()
        losses.append(value.item())
    return losses
