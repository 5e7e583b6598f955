"""PredSim, local error signals (Nøkland, Eidnes, arXiv 1901.06656): L_pred and L_sim together.

Modules train as in greedy learning, on (1 - beta) L_pred + beta L_sim each. L_sim takes every
pair of samples, here in two plain loops.
"""

import torch
from torch import Tensor, nn

from reference import dgl
from reference._linearize import Batches, Loss


def similarity(a: Tensor, b: Tensor) -> Tensor:
    """Return s_ij, the cosine of two vectors less their means, a scalar."""
    a, b = a - a.sum() / len(a), b - b.sum() / len(b)
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def vectors(h: Tensor) -> list[Tensor]:
    """Return the vectors that samples are compared by; the deviations of channels for maps."""
    if h.dim() == 4 and h.shape[1] > 3:
        return [torch.stack([channel.std() for channel in sample]) for sample in h]
    return [sample.reshape(-1) for sample in h]


def sim(h: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return L_sim, a scalar: squared difference to similarities of labels, mean over pairs."""
    hs, ys = vectors(h), [torch.eye(classes, dtype=h.dtype)[label] for label in y]
    pairs = [(i, j) for i in range(len(y)) for j in range(len(y))]
    differences = [similarity(hs[i], hs[j]) - similarity(ys[i], ys[j]) for i, j in pairs]
    return sum(d * d for d in differences) / len(pairs)


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    beta: float,
    classes: int,
    heads: list[nn.Module],
    layers: list[nn.Module],
    **sgd: float,
) -> list[float]:
    """Train modules, heads and layers (one less of these) in place; return the last losses."""

    def local(k: int, h: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return (1 - beta) * loss(heads[k](h), y) + beta * sim(layers[k](h), y, classes)

    both = list(map(nn.ModuleList, zip(heads, layers, strict=True)))
    return dgl.train(modules, batches, loss=loss, heads=both, local=local, **sgd)
