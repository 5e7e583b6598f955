"""Flushed pipelines by their workers: GPipe and 1F1B.

GPipe (arXiv 1811.06965, figure 2c): worker k forwards the M micro-batches of a group, then
back-propagates them. 1F1B (arXiv 2006.09503; 2007.01045): it
forwards K-1-k of them, then one forward and one backward in turn. Each starts an action as
soon as its packet is there, and all update with the mean before the next group.
"""

from collections import deque
from collections.abc import Callable

import torch
from torch import nn

from reference._linearize import Batches, Loss, backward, forward, leaf
from reference.pipedream import one_f_one_b

Order = Callable[[int, int], str]


def gpipe(behind: int, batches: int) -> str:
    """Return the actions of a worker with so many workers behind it, for example FFFBBB."""
    return "F" * batches + "B" * batches


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    accumulate: int = 1,
    order: Order = one_f_one_b,
    recompute: bool = False,
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place; return the loss of each batch."""
    K, losses = len(modules), []
    sgd = [torch.optim.SGD(m.parameters(), **options) for m in modules]
    for start in range(0, len(batches), accumulate):
        group = batches[start : start + accumulate]
        targets = deque(y for _, y in group)
        todo = [deque(order(K - 1 - k, len(group))) for k in range(K)]
        x = [deque(leaf(x) for x, _ in group), *(deque() for _ in range(K - 1))]
        g, kept = [deque() for _ in range(K)], [deque() for _ in range(K)]
        while any(todo):
            for k in range(K):
                while todo[k] and (x[k] if todo[k][0] == "F" else g[k] or k == K - 1):
                    last = k == K - 1
                    if todo[k].popleft() == "F":
                        how = "recompute" if recompute and not last else "live"
                        out, mine = forward(modules[k], x[k].popleft(), how)
                        kept[k].append(mine)
                        if not last:
                            x[k + 1].append(out)
                        continue
                    mine = kept[k].popleft()
                    if last:
                        value = loss(mine[2], targets.popleft())
                        losses.append(value.item())
                        value.backward()
                        back = mine[1].grad
                    else:
                        back = backward(modules[k], mine, g[k].popleft())
                    if k > 0:
                        g[k - 1].append(back)
        for k in range(K):
            for p in modules[k].parameters():
                p.grad /= len(group)
            sgd[k].step()
            sgd[k].zero_grad()
    return losses
