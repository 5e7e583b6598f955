"""Overlapping local updates (arXiv 2012.03837) with late gradients.

Module k learns from the losses of the modules k to k+reach, in the ticks of FDG: every edge
takes one tick in both directions. Each loss is sent back by itself, one backward after another
through the same graph, so that it can be dropped where its reach ends.
"""

import torch
from torch import nn

from reference._linearize import Batches, Loss, forward, leaf


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    heads: list[nn.Module],
    reach: int,
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` and ``heads`` (one less) in place; return the losses of the last."""
    K, N = len(modules), len(batches)
    heads = [*heads, nn.Identity()]  # the last module's output goes to the loss directly
    sgd = [
        torch.optim.SGD([*module.parameters(), *head.parameters()], **options)
        for module, head in zip(modules, heads, strict=True)
    ]
    h = {(0, b): x for b, (x, _) in enumerate(batches)}  # h[k, b]: input of module k
    g, kept, losses = {}, {}, []  # g[k, j, b]: gradient of the loss of module j at module k
    for t in range(N + 2 * (K - 1)):
        for k in range(K):
            f, b = t - k, t - 2 * (K - 1) + k  # batches to forward and to back-propagate
            for action in "BF" if k < K - 1 else "FB":
                if action == "F" and 0 <= f < N:
                    h[k + 1, f], kept[k, f] = forward(modules[k], h.pop((k, f)), "stash")
                if action == "B" and 0 <= b < N:
                    sgd[k].zero_grad()
                    runner, x, out = kept.pop((k, b))
                    end = leaf(out)
                    own = loss(heads[k](end), batches[b][1])
                    own.backward()
                    g[k, k, b] = end.grad
                    for j in range(k, min(k + reach, K - 1) + 1):
                        x.grad = None
                        out.backward(g.pop((k, j, b)), retain_graph=True)
                        if j <= k - 1 + reach:  # else it has crossed all its edges
                            g[k - 1, j, b] = x.grad
                    for p, q in zip(modules[k].parameters(), runner.parameters(), strict=True):
                        p.grad = q.grad
                    sgd[k].step()
                    if k == K - 1:
                        losses.append(own.item())
    return losses
