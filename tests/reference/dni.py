"""DNI, decoupled neural interfaces with synthetic gradients (arXiv 1608.05343, section 2).

Feed-forward and update-unlocked: module k trains at once on the gradient that synthesizer k
predicts from h_k (and from the label: cDNI, ``conditional``), and the gradient of its input is
the target of synthesizer k-1.
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
    synthesizers: list[nn.Module],  # one less than modules, called as s(h, y or None)
    conditional: bool = False,
    target_delay: int = 0,
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` and ``synthesizers`` in place; return the loss of each batch."""
    K, N = len(modules), len(batches)
    sgd, synthesizer_sgd = (
        [SGD(m.parameters(), **options) for m in group] for group in (modules, synthesizers)
    )
    targets, losses = {}, []  # targets[t] = h_k, y, r_k of k = 1..K-1 on batch t
    for t in range(1, N + target_delay + 1):
        if t <= N:
            h, y = batches[t - 1]
            label, targets[t] = y if conditional else None, []
            for k in range(1, K + 1):
                x = leaf(h)
                out = modules[k - 1](x)
                h = out.detach().clone()
                sgd[k - 1].zero_grad()
                if k < K:
                    with torch.no_grad():
                        synthetic = synthesizers[k - 1](h, label)
                    out.backward(synthetic)
                else:
                    value = loss(out, y)
                    value.backward()
                    losses.append(value.item())
                sgd[k - 1].step()
                if k > 1:
                    targets[t].append((x.detach(), label, x.grad))  # h_{k-1}, y, r_{k-1}
        for k, (h_k, label, r_k) in enumerate(targets.pop(t - target_delay, []), 1):
            error = (synthesizers[k - 1](h_k, label) - r_k).square().sum() / len(r_k)
            descend(synthesizer_sgd[k - 1], error)
    return losses
