"""FDG, fully decoupled training with delayed gradients (arXiv 1906.09108, algorithm 1).

Every edge takes one tick in both directions. Ticks and batches have the numbers of the paper.
FDG updates after every gradient; ADL, DDG, DSP, FR and PETRA are other choices.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reference._linearize import Batches, LiveSGD, Loss, backward, forward, leaf


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    linearize: str = "stash",
    order: str = "backward-first",
    shrink: float = 1.0,
    accumulate: int = 1,
    reduce: str = "mean",
    inverse: Callable[[nn.Module, Tensor, Tensor], Tensor] = lambda module, x, y: x,
    forward_delay: int = 1,  # ticks of an edge forwards
    first_rate: float = 1.0,  # the official code of FR multiplies the rate of module 1 by 2
    statistics_twice: bool = False,  # and counts BatchNorm in play and in replay
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place until drained; return the loss of each batch.

    A backward begins from the input inverse(module, input of the forward, output), where the
    output comes back with its gradient: it is that from which module k+1 has begun.
    """
    K, N = len(modules), len(batches)
    kind = LiveSGD if linearize == "live" else torch.optim.SGD
    sgd = [kind(m.parameters(), **options) for m in modules]
    sgd[0].param_groups[0]["lr"] *= first_rate
    h = {(0, b): x for b, (x, _) in enumerate(batches, 1)}  # h[k, b]: output of module k
    back, kept, losses, count = {}, {}, [], [0] * K  # back[k, b]: h[k, b] and dL/dh[k, b]

    def update(k: int) -> None:
        for p in (p for p in modules[k - 1].parameters() if p.grad is not None):
            p.grad = p.grad / {"mean": count[k - 1], "sum": 1}[reduce]
        sgd[k - 1].step()
        sgd[k - 1].zero_grad()
        count[k - 1] = 0

    for t in range(1, N + (forward_delay + 1) * (K - 1) + 1):
        for k in range(1, K + 1):  # h[k-1, f] was sent forward_delay ticks ago, back[k, b] one
            f, b = t - forward_delay * (k - 1), t - forward_delay * (K - 1) - (K - k)
            for action in {"forward-first": "FB", "backward-first": "BF"}[order]:
                if action == "F" and 1 <= f <= N and k < K:
                    x = h.pop((k - 1, f))
                    h[k, f], kept[k, f] = forward(modules[k - 1], x, linearize)
                if action == "B" and 1 <= b <= N:
                    if k < K:
                        (y, g), (runner, x, out) = back.pop((k, b)), kept.pop((k, b))
                        x = inverse(modules[k - 1], x, y)
                        mine = runner, x, out
                        backward(modules[k - 1], mine, shrink * g, statistics_twice)
                    else:  # f = b: forward and backward in one, and an update before the next
                        x = leaf(h.pop((K - 1, b)))
                        value = loss(modules[-1](x), batches[b - 1][1])
                        value.backward()
                        losses.append(value.item())
                    back[k - 1, b] = x.detach(), x.grad
                    count[k - 1] += 1
                    if count[k - 1] == accumulate:
                        update(k)
    for k in (k for k in range(1, K + 1) if count[k - 1]):  # the last, partial groups
        update(k)
    return losses
