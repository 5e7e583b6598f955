"""FDG, fully decoupled training with delayed gradients (arXiv 1906.09108, algorithm 1).

Every edge takes one tick in both directions. Ticks and batches have the numbers of the paper.
"""

import torch
from torch import nn

from reference._linearize import Batches, LiveSGD, Loss, backward, descend, forward, leaf


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    linearize: str = "stash",
    order: str = "backward-first",
    shrink: float = 1.0,
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place until drained; return the loss of each batch."""
    K, N = len(modules), len(batches)
    kind = LiveSGD if linearize == "live" else torch.optim.SGD
    sgd = [kind(m.parameters(), **options) for m in modules]
    h = {(0, b): x for b, (x, _) in enumerate(batches, 1)}  # h[k, b]: output of module k
    g, kept, losses = {}, {}, []  # g[k, b] = dL/dh[k, b]
    for t in range(1, N + 2 * K - 1):
        for k in range(1, K):
            f, b = t - k + 1, t - 2 * K + k + 1  # h[k-1, f] and g[k, b] were sent at tick t-1
            for action in {"forward-first": "FB", "backward-first": "BF"}[order]:
                if action == "F" and 1 <= f <= N:
                    x = h.pop((k - 1, f))
                    h[k, f], kept[k, f] = forward(modules[k - 1], x, linearize)
                if action == "B" and 1 <= b <= N:
                    sgd[k - 1].zero_grad()
                    g_k, mine = shrink * g.pop((k, b)), kept.pop((k, b))
                    g[k - 1, b] = backward(modules[k - 1], mine, g_k)
                    sgd[k - 1].step()
        f = t - K + 1
        if 1 <= f <= N:  # the paper's module K updates at t+1, before its forward: the same
            x, y = leaf(h.pop((K - 1, f))), batches[f - 1][1]
            losses.append(descend(sgd[-1], loss(modules[-1](x), y)))
            g[K - 1, f] = x.grad
    return losses
