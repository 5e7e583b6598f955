"""Wide ResNet: few, wide blocks with the norm before the convolution.

Layers: `stem`, `layer1_0` ... `layer3_3` (group, then block from 0), `head`; the last norm and
ReLU belong to the head.

Source: Zagoruyko, Komodakis, Wide residual networks, BMVC 2016, arXiv 1605.07146, table 1. The
FDG code also gives every convolution a bias; we follow the paper.
"""

# Shapes: B batch, C channels, H W sides of a map.

from collections import OrderedDict
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from hocket.zoo.layer import Layer
from hocket.zoo.residual import average_head, conv, stack_groups


@final
class PreActivation(nn.Module):
    """Residual block with norm and ReLU first.

    If the block widens, its shortcut is a convolution of their output.
    """

    plain_forward = True

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.shortcut = None if inputs == outputs else conv(inputs, outputs, 1, stride)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the sum of convolutions and shortcut, (B, C, H, W)."""
        active_BCHW = F.relu(self.norm1(x_BCHW))
        body_BCHW: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active_BCHW))))
        if self.shortcut is None:
            return x_BCHW + body_BCHW
        shortcut_BCHW: Tensor = self.shortcut(active_BCHW)
        return shortcut_BCHW + body_BCHW


def wrn28_10(*, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build WRN-28-10: 12 blocks of 160, 320 and 640 channels, 36.5 million parameters.

    >>> import torch
    >>> with torch.device("meta"):
    ...     network = wrn28_10()
    >>> list(dict(network.named_children()))[-2:]
    ['layer3_3', 'head']
    """
    stem = conv(in_channels, 16, 3)
    layers = stack_groups(stem, 16, (160, 320, 640), 4, PreActivation)
    head = dict(average_head(640, num_classes).named_children())
    layers["head"] = Layer(OrderedDict(norm=nn.BatchNorm2d(640), relu=nn.ReLU(), **head))
    return nn.Sequential(layers)
