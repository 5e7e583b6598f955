"""Reversible ResNets for CIFAR, whose blocks have an inverse.

A map is two halves of its channels, x1 and x2. A block returns (x2 + F(x1), x1), and its
inverse of (y1, y2) is (y2, y1 - F(y2)). Stem, head, and blocks that halve the sides have no
inverse. Layers: `stem`, `layer1_0` ... (group, then block from 0) and `head`.

Sources: Gomez et al., The reversible residual network, arXiv 1707.04585, which couples two
functions in a block; with one function and swapped halves, as here, Rivaud et al., arXiv
2406.02052, whose official code has the ReLU behind each norm and the shortcut.
"""

# Shapes: B batch, C channels, H W sides of a map.

from collections import OrderedDict
from typing import final

import torch
from torch import Tensor, nn

from hocket.zoo.residual import (
    average_head,
    basic_body,
    conv,
    conv_norm_relu,
    conv_shortcut,
    stack_groups,
)


@final
class Coupling(nn.Module):
    """Reversible block that adds a function of one half of the channels to the other."""

    plain_forward = True

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return `(x2 + body(x1), x1)`, of shape (B, C, H, W)."""
        x1, x2 = x_BCHW.chunk(2, dim=1)
        return torch.cat((x2 + self.body(x1), x1), dim=1)

    def reverse(self, y_BCHW: Tensor) -> Tensor:
        """Return the input that has this output, of shape (B, C, H, W)."""
        y1, y2 = y_BCHW.chunk(2, dim=1)
        return torch.cat((y2, y1 - self.body(y2)), dim=1)


@final
class HalvingBlock(nn.Module):
    """Block that halves the sides and has no inverse: `(shortcut(x2) + rest(h), h)`.

    The other half is its inner map `h = first(x1)`.
    """

    plain_forward = True

    def __init__(self, first: nn.Module, rest: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.rest = rest
        self.shortcut = shortcut

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return both halves, of shape (B, D, H / 2, W / 2)."""
        x1, x2 = x_BCHW.chunk(2, dim=1)
        inner = self.first(x1)
        return torch.cat((self.shortcut(x2) + self.rest(inner), inner), dim=1)


def _block(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Build a block whose halves have so many channels."""
    if stride == 1:
        return Coupling(nn.Sequential(basic_body(inputs, outputs, 1), nn.ReLU()))
    first = nn.Sequential(conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs))
    rest = nn.Sequential(nn.ReLU(), conv_norm_relu(outputs, outputs, 3))
    return HalvingBlock(first, rest, conv_shortcut(inputs, outputs, stride))


def _build(widths: tuple[int, ...], num_classes: int, in_channels: int) -> nn.Sequential:
    """Build stem, groups of two blocks, whose halves have so many channels, and head."""
    stem = conv_norm_relu(in_channels, 2 * widths[0], 3)
    layers: OrderedDict[str, nn.Module] = stack_groups(stem, widths[0], widths, 2, _block)
    layers["head"] = average_head(2 * widths[-1], num_classes)
    return nn.Sequential(layers)


def revnet14(*, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build a narrow reversible ResNet, 16 to 64 channels a half, for quick experiments.

    The network maps images (B, C, H, W) to scores (B, num_classes).

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
    """
    return _build((16, 32, 64), num_classes, in_channels)


def revnet18(*, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build the reversible ResNet-18 of PETRA with the CIFAR stem, 64 to 512 channels a half.

    Arguments: see `revnet14`.
    """
    return _build((64, 128, 256, 512), num_classes, in_channels)
