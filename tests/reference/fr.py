"""FR, features replay (arXiv 1807.04511, algorithm 1): DDG's delays, inputs kept, not graphs.

Play: every module k < K forwards batch t without a graph and stores its *input*. Replay: the
input of batch t - (K-k) goes through the current weights, and meets the gradient of that batch.
"""

import torch
from torch import nn

from reference._linearize import Batches, Loss, descend, leaf


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    order: str = "forward-first",
    first_rate: float = 1.0,  # the official code multiplies the rate of module 1 by 2
    statistics_twice: bool = False,  # the official code counts BatchNorm in play and in replay
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place until drained; return the loss of each batch."""
    K, N = len(modules), len(batches)
    sgd = [torch.optim.SGD(m.parameters(), **options) for m in modules]
    sgd[0].param_groups[0]["lr"] *= first_rate
    history, g, losses = {}, {}, []  # history[k, b]: input of module k; g[k, b] = dL/dh_k
    for t in range(1, N + K):
        h = batches[t - 1][0] if t <= N else None
        for k in range(1, K):
            b = t - (K - k)  # module k+1 sent g[k, b] at iteration t-1
            for action in {"forward-first": "FB", "backward-first": "BF"}[order]:
                if action == "F" and t <= N:  # play
                    history[k, t] = leaf(h)
                    with torch.no_grad():
                        h = modules[k - 1](h)
                if action == "B" and 1 <= b <= N:  # replay
                    x, before = history[k, b], [v.clone() for v in modules[k - 1].buffers()]
                    sgd[k - 1].zero_grad()
                    modules[k - 1](x).backward(g.pop((k, b)))
                    for v, old in zip(modules[k - 1].buffers(), before, strict=True):
                        v.copy_(v if statistics_twice else old)
                    sgd[k - 1].step()
                    g[k - 1, b] = x.grad
        if t <= N:  # module K: no delay
            x, y = leaf(h), batches[t - 1][1]
            losses.append(descend(sgd[-1], loss(modules[-1](x), y)))
            g[K - 1, t] = x.grad
    return losses
