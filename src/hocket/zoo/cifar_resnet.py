"""The ResNets for CIFAR.

The narrow ones are 6n+2 layers deep and 16, 32 and 64 channels wide. ResNet-18 is ImageNet's
with a 3x3 stem. Layers: `stem`, `layer1_0` ... `layer3_{n-1}` (group, then block from 0) and
`head`.

Sources: He et al., arXiv 1512.03385, section 4.2 and table 1; Zhuang et al., arXiv 1906.09108,
whose official code has the 3x3 stem, the corner pooling and PyTorch's initialisation.
"""

from collections.abc import Callable
from typing import Literal, get_args

from torch import nn

from hocket.errors import OptionError, raise_problems
from hocket.options.ranges import wrong_choice
from hocket.zoo.residual import (
    PadShortcut,
    Residual,
    average_head,
    basic_body,
    conv_norm_relu,
    conv_shortcut,
    stack_groups,
)

Pooling = Literal["global", "corner6"]
Init = Literal["pytorch", "he"]


def _make_builder(depth: int, summary: str) -> Callable[..., nn.Sequential]:
    """Return the function that builds the narrow ResNet of one depth, ``resnet{depth}``."""

    def build(
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        pooling: Pooling = "global",
        init: Init = "pytorch",
    ) -> nn.Sequential:
        """Build basic blocks without parameters in their shortcuts.

        The network maps images (B, C, H, W) to scores (B, num_classes).

        Args:
            num_classes: Length of the output.
            in_channels: Channels of the images.
            pooling: `global` averages the last map; `corner6` averages its first 6x6 pixels, as
                the official FDG code does with the 8x8 map of a 32x32 image.
            init: `pytorch` leaves PyTorch's defaults; `he` draws the convolutions from
                N(0, 2 / (kernel * kernel * outputs)), as the DDG code does.

        Raises:
            OptionError: The pooling or the init is not valid.
        """
        problems = wrong_choice("pooling", pooling, get_args(Pooling))
        problems += wrong_choice("init", init, get_args(Init))
        raise_problems(OptionError, "cannot build this CIFAR ResNet", problems)

        # Three groups of blocks between stem and head.
        stem = conv_norm_relu(in_channels, 16, 3)
        layers = stack_groups(stem, 16, (16, 32, 64), (depth - 2) // 6, _narrow_block)
        layers["head"] = head = average_head(64, num_classes)
        if pooling == "corner6":
            head.pool = nn.AvgPool2d(6)
        network = nn.Sequential(layers)
        if init == "he":
            for module in network.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return network

    build.__name__ = build.__qualname__ = f"resnet{depth}"
    build.__doc__ = f"Build ResNet-{depth}: {summary}.\n\n        {build.__doc__}"
    return build


def _narrow_block(inputs: int, outputs: int, stride: int) -> Residual:
    shortcut = PadShortcut(inputs, outputs, stride) if stride > 1 else nn.Identity()
    return Residual(basic_body(inputs, outputs, stride), shortcut)


resnet8 = _make_builder(8, "1 block per group, for quick experiments")
resnet20 = _make_builder(20, "3 blocks per group, 0.27 million parameters")
resnet32 = _make_builder(32, "5 blocks per group, 0.46 million parameters")
resnet44 = _make_builder(44, "7 blocks per group, 0.66 million parameters")
resnet56 = _make_builder(56, "9 blocks per group, 0.85 million parameters")
resnet110 = _make_builder(110, "18 blocks per group, 1.7 million parameters")
resnet1202 = _make_builder(1202, "200 blocks per group, 19.4 million parameters")


def resnet18(*, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build ResNet-18 with the CIFAR stem (3x3, stride 1, no pooling), 11.2 million parameters.

    >>> list(dict(resnet18().named_children()))[:4]
    ['stem', 'layer1_0', 'layer1_1', 'layer2_0']
    """
    stem = conv_norm_relu(in_channels, 64, 3)
    layers = stack_groups(stem, 64, (64, 128, 256, 512), 2, _wide_block)
    layers["head"] = average_head(512, num_classes)
    return nn.Sequential(layers)


def _wide_block(inputs: int, outputs: int, stride: int) -> Residual:
    return Residual(basic_body(inputs, outputs, stride), conv_shortcut(inputs, outputs, stride))
