"""ADL, accumulated decoupled learning (arXiv 2012.03747): FDG's ticks, an update every M.

Each module counts its own backward passes. The official code has reduce="sum".
"""

import torch
from torch import nn

from reference._linearize import Batches, LiveSGD, Loss, backward, forward, leaf


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    accumulate: int = 1,
    reduce: str = "mean",
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
    g, kept, losses, count = {}, {}, [], [0] * K  # g[k, b] = dL/dh[k, b]

    def update(k: int) -> None:
        for p in (p for p in modules[k - 1].parameters() if p.grad is not None):
            p.grad = p.grad / {"mean": count[k - 1], "sum": 1}[reduce]
        sgd[k - 1].step()
        sgd[k - 1].zero_grad()
        count[k - 1] = 0

    for t in range(1, N + 2 * K - 1):
        for k in range(1, K + 1):
            f, b = t - k + 1, t - 2 * K + k + 1  # h[k-1, f] and g[k, b] were sent at tick t-1
            for action in {"forward-first": "FB", "backward-first": "BF"}[order]:
                if action == "F" and 1 <= f <= N and k < K:
                    h[k, f], kept[k, f] = forward(modules[k - 1], h[k - 1, f], linearize)
                if action == "B" and 1 <= b <= N:
                    if k < K:
                        g[k - 1, b] = backward(modules[k - 1], kept[k, b], shrink * g[k, b])
                    else:  # f = b: forward and backward in one
                        x = leaf(h[K - 1, b])
                        value = loss(modules[-1](x), batches[b - 1][1])
                        value.backward()
                        g[K - 1, b] = x.grad
                        losses.append(value.item())
                    count[k - 1] += 1
                    if count[k - 1] == accumulate:
                        update(k)
    for k in (k for k in range(1, K + 1) if count[k - 1]):  # the last, partial groups
        update(k)
    return losses
