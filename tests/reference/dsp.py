"""DSP, diversely stale parameters (arXiv 1909.02625): FDG's delays, FR's replay.

Every edge takes one tick in both directions; a module keeps inputs only, and back-propagates a
batch through the weights of the tick in which its gradient comes.
"""

import torch
from torch import nn
from torch.optim import SGD

from reference._linearize import Batches, Loss, descend, leaf


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    order: str = "forward-first",
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place until drained; return the loss of each batch."""
    K, N = len(modules), len(batches)
    sgd = [SGD(m.parameters(), **options) for m in modules]
    x = {(1, b): leaf(x) for b, (x, _) in enumerate(batches, 1)}  # x[k, b]: input of module k
    g, losses = {}, []  # g[k, b]: gradient of the output of module k
    for t in range(1, N + 2 * K - 1):
        for k in range(1, K):
            module, f, b = modules[k - 1], t - k + 1, t - 2 * K + k + 1
            for action in {"forward-first": "FB", "backward-first": "BF"}[order]:
                if action == "F" and 1 <= f <= N:  # its input was made at tick t-1
                    with torch.no_grad():
                        x[k + 1, f] = leaf(module(x[k, f]))
                if action == "B" and 1 <= b <= N:  # its gradient was made at tick t-1
                    statistics = [v.clone() for v in module.buffers()]
                    sgd[k - 1].zero_grad()
                    module(x[k, b]).backward(g[k, b])
                    for v, counted_once in zip(module.buffers(), statistics, strict=True):
                        v.copy_(counted_once)
                    sgd[k - 1].step()
                    g[k - 1, b] = x.pop((k, b)).grad
        f = t - K + 1
        if 1 <= f <= N:  # module K: no delay
            value = loss(modules[-1](x[K, f]), batches[f - 1][1])
            losses.append(descend(sgd[-1], value))
            g[K - 1, f] = x[K, f].grad
    return losses
