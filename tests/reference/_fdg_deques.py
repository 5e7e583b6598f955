"""FDG as its official code does it (ZHUANGHP/FDG for arXiv 1906.09108), in one thread.

No tick or batch has a number: a delay is the length of a deque pre-filled with None, and a
missing message is None. Graphs wait while the weights move through ``.data`` ("live").
"""

from collections import deque

from torch import nn

from reference._linearize import Batches, LiveSGD, Loss, leaf


def train_deques(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    shrink: float = 1.0,
    **options: float,  # of SGD
) -> list[float]:
    """Train as ``fdg.train`` with linearize="live", order="backward-first", by position."""
    K = len(modules)
    sgd = [LiveSGD(m.parameters(), **options) for m in modules]
    graphs = [deque([None] * (2 * (K - k))) for k in range(1, K)]
    labels = deque([None] * (K - 1))  # so that a label comes to module K with its batch
    acts, grads, losses = [None] * K, [None] * K, []  # packets waiting for each module
    for x, y in [*batches, *[(None, None)] * (2 * K - 2)]:  # the empty ticks drain
        acts[0] = x
        labels.append(y)
        label, next_acts, next_grads = labels.popleft(), [None] * K, [None] * K
        for i, module in enumerate(modules[:-1]):
            sgd[i].zero_grad()
            x_old, out_old = graphs[i].popleft() or (None, None)
            if grads[i] is not None:
                out_old.backward(grads[i] * shrink)
                next_grads[i - 1] = x_old.grad  # module 1 writes to [-1], which is not read
            sgd[i].step()  # moves nothing where there is no gradient
            graphs[i].append(None)
            if acts[i] is not None:
                x_new = leaf(acts[i])
                graphs[i][-1] = x_new, module(x_new)
                next_acts[i + 1] = graphs[i][-1][1].detach().clone()
        sgd[-1].step()  # the gradient pending since the last tick
        sgd[-1].zero_grad()
        if acts[-1] is not None:
            x_new = leaf(acts[-1])
            value = loss(modules[-1](x_new), label)
            value.backward()
            next_grads[K - 2] = x_new.grad
            losses.append(value.item())
        acts, grads = next_acts, next_grads  # the exchange, after all modules are done
    sgd[-1].step()
    return losses
