"""InfoPro (Wang et al., ICLR 2021, arXiv 2101.10832): l1 R(x|h) + l2 L(head(h), y) per module.

Modules train as in greedy learning. R is the squared error of a decoder's picture of the input
x; the two weights change linearly from the first module with such a loss to the last one.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference._linearize import Batches, Loss


def reconstruction(decoder: nn.Sequential, h: Tensor, x: Tensor) -> Tensor:
    """Return R(x|h), a scalar: enlarge h to the sides of x, two convolutions, squared error."""
    _, first, norm, relu, second = decoder
    h = F.interpolate(h, size=x.shape[2:], mode="bilinear", align_corners=True)
    difference = second(relu(norm(first(h)))) - x
    return (difference * difference).sum() / difference.numel()


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    weights: list[float],  # l1 and l2 of the first module, l1 and l2 of the last but one
    heads: list[nn.Module],
    decoders: list[nn.Sequential],
    **sgd: float,
) -> list[float]:
    """Train modules, heads and decoders (one less) in place; return the losses of the last."""
    groups = [*zip(modules[:-1], heads, decoders, strict=True), modules[-1:]]
    opts = [torch.optim.SGD(nn.ModuleList(group).parameters(), **sgd) for group in groups]
    losses = []
    for x, y in batches:
        h = x
        for k, (module, opt) in enumerate(zip(modules, opts, strict=True)):
            h = module(h.detach())
            value = loss(heads[k](h) if k < len(heads) else h, y)
            if k < len(heads):
                ratio = k / (len(heads) - 1) if len(heads) > 1 else 0.0
                l1 = weights[0] + ratio * (weights[2] - weights[0])
                l2 = weights[1] + ratio * (weights[3] - weights[1])
                value = l1 * reconstruction(decoders[k], h, x) + l2 * value
            opt.zero_grad()
            value.backward()
            opt.step()
        losses.append(value.item())
    return losses
