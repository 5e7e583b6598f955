"""Residual blocks: what the ResNets for CIFAR and for ImageNet have in common.

Source: He, Zhang, Ren, Sun, Deep residual learning, CVPR 2016, arXiv 1512.03385, section 3.3.
"""

# Shapes: B batch, C channels, H W sides of a map.

from collections import OrderedDict
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from hocket.zoo.layer import Layer


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Convolution that keeps the sides at stride 1; no bias, for a norm would cancel it."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def conv_norm_relu(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution, BatchNorm, ReLU; none of them in place."""
    return Layer(
        OrderedDict(
            conv=conv(inputs, outputs, kernel, stride),
            norm=nn.BatchNorm2d(outputs),
            relu=nn.ReLU(),
        )
    )


@final
class Residual(nn.Module):
    """`relu(body(x) + shortcut(x))`, equation 1 of the paper; the output is after the ReLU."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """The body added to the shortcut, rectified."""
        return F.relu(self.body(x_BCHW) + self.shortcut(x_BCHW))


@final
class PadShortcut(nn.Module):
    """Shortcut without parameters (option A): every stride-th pixel, and channels of zeros.

    Where the zeros stand among the channels only renames them: all places train alike.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.zeros = outputs - inputs
        self.stride = stride

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Every stride-th pixel, with channels of zeros appended."""
        kept_BCHW = x_BCHW[:, :, :: self.stride, :: self.stride]
        return F.pad(kept_BCHW, (0, 0, 0, 0, 0, self.zeros))


def conv_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Shortcut with a 1x1 convolution wherever the shape changes (option B)."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(
        OrderedDict(conv=conv(inputs, outputs, 1, stride), norm=nn.BatchNorm2d(outputs))
    )


def basic_body(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Two 3x3 convolutions (figure 5, left)."""
    return nn.Sequential(
        OrderedDict(
            conv1=conv(inputs, outputs, 3, stride),
            norm1=nn.BatchNorm2d(outputs),
            relu1=nn.ReLU(),
            conv2=conv(outputs, outputs, 3),
            norm2=nn.BatchNorm2d(outputs),
        )
    )


def bottleneck_body(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """1x1, 3x3, 1x1 convolutions, a quarter as wide inside (figure 5, right).

    The stride is on the 3x3 convolution, as in torchvision, not on the first as in the paper.
    """
    width = outputs // 4
    return nn.Sequential(
        OrderedDict(
            conv1=conv(inputs, width, 1),
            norm1=nn.BatchNorm2d(width),
            relu1=nn.ReLU(),
            conv2=conv(width, width, 3, stride),
            norm2=nn.BatchNorm2d(width),
            relu2=nn.ReLU(),
            conv3=conv(width, outputs, 1),
            norm3=nn.BatchNorm2d(outputs),
        )
    )
