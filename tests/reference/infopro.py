"""InfoPro (Wang et al., ICLR 2021, arXiv 2101.10832): l1 R(x|h) + l2 L(head(h), y) per module.

Modules train as in greedy learning. R is the squared error of a decoder's picture of the input
x; the two weights change linearly from the first module with such a loss to the last one.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from reference import dgl
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

    def local(k: int, h: Tensor, x: Tensor, y: Tensor) -> Tensor:
        ratio = k / (len(heads) - 1) if len(heads) > 1 else 0.0
        l1 = weights[0] + ratio * (weights[2] - weights[0])
        l2 = weights[1] + ratio * (weights[3] - weights[1])
        return l1 * reconstruction(decoders[k], h, x) + l2 * loss(heads[k](h), y)

    both = list(map(nn.ModuleList, zip(heads, decoders, strict=True)))
    return dgl.train(modules, batches, loss=loss, heads=both, local=local, **sgd)
