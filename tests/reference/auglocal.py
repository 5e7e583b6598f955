"""Auxiliary networks of AugLocal (arXiv 2402.17318) as plain convolutions.

Layers are counted from 1 to L: a head on layer l has d_l layers, like those
with the numbers l + i (L - l) / d_l for i = 1 ... d_l, and d falls linearly from head to head.
"""

from torch import nn


def depth(l_: int, last: int, d: int) -> int:
    """Return d_l of a head on layer l, if the last head is on layer ``last``."""
    x = (l_ - 1) / (last - 1) if last > 1 else 0.0
    return max(1, round((1 - x) * d + x))


def chosen(l_: int, layers: int, d: int) -> list[int]:
    """Return the numbers of the layers that the head on layer l is made of."""
    if d >= layers - l_:
        return list(range(l_ + 1, layers + 1))
    # The authors count from 0, and round to even.
    return [1 + round(l_ - 1 + (layers - l_) / d * i) for i in range(1, d + 1)]


def head(channels: list[int], sides: list[int], l_: int, d: int, classes: int) -> nn.Module:
    """Return the head on layer l; channels and sides are those of layers 1 to L."""
    built, c, side = [], channels[l_ - 1], sides[l_ - 1]
    for number in chosen(l_, len(channels), d):
        stride = side // sides[number - 1]
        built += [nn.Conv2d(c, channels[number - 1], 3, stride, 1, bias=False)]
        c, side = channels[number - 1], sides[number - 1]
        built += [nn.BatchNorm2d(c), nn.ReLU()]
    return nn.Sequential(*built, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes))
