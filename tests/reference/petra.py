"""PETRA (arXiv 2406.02052, algorithm 1): FDG's delays, and inputs computed from outputs.

Module k+1 sends its input back with the gradient. From it module k computes its own input,
layer after layer, and back-propagates from there. A module with a layer that has no inverse
keeps its inputs. BatchNorm counts a batch in the forward; in the paper, in the backward.
"""

import torch
from torch import Tensor, nn
from torch.optim import SGD

from reference._linearize import Batches, Loss, leaf


def reversible(module: nn.Sequential) -> bool:
    return all(hasattr(layer, "reverse") for layer in module)


@torch.no_grad()
def invert(module: nn.Sequential, y: Tensor) -> Tensor:
    for layer in reversed(module):
        y = layer.reverse(y)
    return y


def train(
    modules: list[nn.Sequential],
    batches: Batches,
    *,
    loss: Loss,
    accumulate: int = 1,
    order: str = "forward-first",
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place until drained; return the loss of each batch."""
    K, N = len(modules), len(batches)
    sgd = [SGD(m.parameters(), **options) for m in modules]
    h = {(0, b): x for b, (x, _) in enumerate(batches, 1)}  # h[k, b]: output of module k
    back, kept, losses, count = {}, {}, [], [0] * K  # back[k, b]: that output and its gradient

    def update(k: int) -> None:
        for p in modules[k - 1].parameters():
            p.grad = p.grad / count[k - 1]
        sgd[k - 1].step()
        sgd[k - 1].zero_grad()
        count[k - 1] = 0

    for t in range(1, N + 2 * K - 1):
        for k in range(1, K + 1):
            module, f, b = modules[k - 1], t - k + 1, t - 2 * K + k + 1
            for action in {"forward-first": "FB", "backward-first": "BF"}[order]:
                if action == "F" and 1 <= f <= N and k < K:
                    x = h.pop((k - 1, f))
                    with torch.no_grad():
                        h[k, f] = module(x)
                    if not reversible(module):
                        kept[k, f] = x
                if action == "B" and 1 <= b <= N:
                    if k == K:  # f = b: forward and backward in one
                        x = leaf(h.pop((K - 1, b)))
                        value = loss(module(x), batches[b - 1][1])
                        value.backward()
                        losses.append(value.item())
                    else:
                        y, g = back.pop((k, b))
                        statistics = [v.clone() for v in module.buffers()]
                        x = leaf(invert(module, y) if reversible(module) else kept.pop((k, b)))
                        module(x).backward(g)
                        for v, counted_once in zip(module.buffers(), statistics, strict=True):
                            v.copy_(counted_once)
                    back[k - 1, b] = x.detach(), x.grad
                    count[k - 1] += 1
                    if count[k - 1] == accumulate:
                        update(k)
    for k in (k for k in range(1, K + 1) if count[k - 1]):  # the last, partial groups
        update(k)
    return losses
