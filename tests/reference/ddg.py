"""DDG, decoupled parallel back-propagation with delayed gradients (arXiv 1804.10574, alg. 1).

Activations pass within the iteration, gradients one iteration per edge: module k forwards batch
t and back-propagates batch t - (K-k). The paper's gradient is "stash", its code's "live".
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
    order: str = "forward-first",
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place until drained; return the loss of each batch."""
    K, N = len(modules), len(batches)
    kind = LiveSGD if linearize == "live" else torch.optim.SGD
    sgd = [kind(m.parameters(), **options) for m in modules]
    h = {(0, b): x for b, (x, _) in enumerate(batches, 1)}  # h[k, b]: output of module k
    g, kept, losses = {}, {}, []  # g[k, b] = dL/dh[k, b]
    for t in range(1, N + K):
        for k in range(1, K):
            b = t - (K - k)  # module k+1 sent g[k, b] at iteration t-1
            for action in {"forward-first": "FB", "backward-first": "BF"}[order]:
                if action == "F" and t <= N:
                    x = h.pop((k - 1, t))
                    h[k, t], kept[k, t] = forward(modules[k - 1], x, linearize)
                if action == "B" and 1 <= b <= N:
                    sgd[k - 1].zero_grad()
                    g_k, mine = g.pop((k, b)), kept.pop((k, b))
                    g[k - 1, b] = backward(modules[k - 1], mine, g_k)
                    sgd[k - 1].step()
        if t <= N:  # module K: no delay
            x, y = leaf(h.pop((K - 1, t))), batches[t - 1][1]
            losses.append(descend(sgd[-1], loss(modules[-1](x), y)))
            g[K - 1, t] = x.grad
    return losses
