"""Residual blocks of the ResNets for CIFAR.

Source: He, Zhang, Ren, Sun, Deep residual learning, CVPR 2016, arXiv 1512.03385, section 3.3.
"""

# Shapes: B batch, C channels, H W sides of a map.

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from hocket.zoo.layer import Layer


def conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, bias: bool = False
) -> nn.Conv2d:
    """Build a convolution that keeps the sides at stride 1.

    Args:
        inputs: Input channels.
        outputs: Output channels.
        kernel: Side of the kernel, odd.
        stride: Stride in both dimensions.
        bias: Whether it has a bias, which a norm after it cancels.
    """
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)


def conv_norm_relu(
    inputs: int, outputs: int, kernel: int, *, bias: bool = False
) -> nn.Sequential:
    """Build convolution, BatchNorm and ReLU, none of them in place.

    Args:
        inputs: Input channels.
        outputs: Output channels.
        kernel: Side of the kernel, odd.
        bias: Whether the convolution has a bias.
    """
    return Layer(
        OrderedDict(
            conv=conv(inputs, outputs, kernel, bias=bias),
            norm=nn.BatchNorm2d(outputs),
            relu=nn.ReLU(),
        )
    )


@final
class Residual(nn.Module):
    """Residual block `relu(body(x) + shortcut(x))`, equation 1 of the paper."""

    plain_forward = True

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return `relu(body(x) + shortcut(x))`, of shape (B, C, H, W)."""
        # First, so that a cut inside the body sends its output, and not its larger input.
        shortcut_BCHW = self.shortcut(x_BCHW)
        return F.relu(self.body(x_BCHW) + shortcut_BCHW)


@final
class PadShortcut(nn.Module):
    """Shortcut without parameters (option A): every stride-th pixel, and channels of zeros.

    The position of the zeros among the channels does not matter for training.
    """

    plain_forward = True

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.zeros = outputs - inputs
        self.stride = stride

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return every stride-th pixel, with channels of zeros appended, (B, C, H, W)."""
        kept_BCHW = x_BCHW[:, :, :: self.stride, :: self.stride]
        return F.pad(kept_BCHW, (0, 0, 0, 0, 0, self.zeros))


def conv_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Build a shortcut, with a 1x1 convolution if the shape changes (option B).

    Args:
        inputs: Input channels.
        outputs: Output channels.
        stride: Stride of the block.
    """
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(
        OrderedDict(conv=conv(inputs, outputs, 1, stride), norm=nn.BatchNorm2d(outputs))
    )


def basic_body(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Build two 3x3 convolutions (figure 5, left).

    Args:
        inputs: Input channels.
        outputs: Output channels.
        stride: Stride of the first convolution.
    """
    return nn.Sequential(
        OrderedDict(
            conv1=conv(inputs, outputs, 3, stride),
            norm1=nn.BatchNorm2d(outputs),
            relu1=nn.ReLU(),
            conv2=conv(outputs, outputs, 3),
            norm2=nn.BatchNorm2d(outputs),
        )
    )


def stack_groups(
    stem: nn.Module,
    inputs: int,
    widths: Sequence[int],
    blocks: int,
    build_block: Callable[[int, int, int], nn.Module],
) -> OrderedDict[str, nn.Module]:
    """Build the groups of a network behind its stem: `layer1_0` ... (group, block from 0).

    Args:
        stem: The layers before the groups.
        inputs: Its output channels.
        widths: Channels of each group; each but the first begins by halving the sides.
        blocks: Number of blocks in a group.
        build_block: Builds a block from input channels, output channels and stride.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=stem)
    for group, width in enumerate(widths, start=1):
        for block in range(blocks):
            stride = 2 if group > 1 and block == 0 else 1
            layers[f"layer{group}_{block}"] = build_block(inputs, width, stride)
            inputs = width
    return layers


def average_head(channels: int, num_classes: int) -> Layer:
    """Build the head: the average of each channel, then a linear layer."""
    return Layer(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            linear=nn.Linear(channels, num_classes),
        )
    )
