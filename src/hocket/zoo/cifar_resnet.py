"""The narrow ResNets for CIFAR: 6n+2 layers deep, 16, 32 and 64 channels wide.

Layers: `stem`, `layer1_0` ... `layer3_{n-1}` (group, then block from 0), `head`.

Sources: He et al., arXiv 1512.03385, section 4.2; Zhuang et al., arXiv 1906.09108, whose
official code has the corner pooling and PyTorch's initialisation.
"""

from collections import OrderedDict
from typing import Literal, Protocol, get_args

from torch import nn

from hocket.errors import OptionError, format_problems
from hocket.options.ranges import wrong_choice
from hocket.zoo.layer import Layer
from hocket.zoo.residual import PadShortcut, Residual, basic_body, conv_norm_relu

Pooling = Literal["global", "corner6"]
Init = Literal["pytorch", "he"]
WIDTHS = (16, 32, 64)


def cifar_resnet(
    depth: int,
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    pooling: Pooling = "global",
    init: Init = "pytorch",
) -> nn.Sequential:
    """Build a ResNet of basic blocks without parameters in its shortcuts.

    It maps images (B, C, H, W) to scores (B, num_classes).

    Args:
        depth: Number of layers with weights: 6n+2 for n blocks in each of the three groups.
        num_classes: Length of the output.
        in_channels: Channels of the images.
        pooling: `global` averages the last map; `corner6` averages its first 6x6 pixels, as
            the official FDG code does with the 8x8 map of a 32x32 image.
        init: `pytorch` leaves PyTorch's defaults; `he` draws the convolutions from
            N(0, 2 / (kernel * kernel * outputs)), as the DDG code does.

    Raises:
        OptionError: The depth, the pooling or the init is not valid.

    >>> list(dict(cifar_resnet(8).named_children()))
    ['stem', 'layer1_0', 'layer2_0', 'layer3_0', 'head']
    """
    _check(depth, pooling, init)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = conv_norm_relu(in_channels, WIDTHS[0], 3)
    inputs = WIDTHS[0]
    for group, width in enumerate(WIDTHS, start=1):
        for block in range((depth - 2) // 6):
            layers[f"layer{group}_{block}"] = _block(inputs, width)
            inputs = width
    layers["head"] = Layer(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(1) if pooling == "global" else nn.AvgPool2d(6),
            flatten=nn.Flatten(),
            linear=nn.Linear(inputs, num_classes),
        )
    )
    network = nn.Sequential(layers)
    if init == "he":
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def _check(depth: int, pooling: str, init: str) -> None:
    """Refuse options that this family does not have, all problems at once.

    Raises:
        OptionError: An option is unknown or out of range.
    """
    problems = []
    if depth < 8 or (depth - 2) % 6:
        problems.append(f"depth {depth} is not 6n+2; ask for 8, 14, 20, ...")
    problems += wrong_choice("pooling", pooling, get_args(Pooling))
    problems += wrong_choice("init", init, get_args(Init))
    if problems:
        raise OptionError(format_problems("cannot build this CIFAR ResNet", problems))


def _block(inputs: int, outputs: int) -> Residual:
    """Build a basic block; if it widens, it also halves the sides."""
    if inputs == outputs:
        return Residual(basic_body(inputs, outputs, 1), nn.Identity())
    return Residual(basic_body(inputs, outputs, 2), PadShortcut(inputs, outputs, 2))


class CifarResNetBuilder(Protocol):
    """Builder of a CIFAR ResNet of one depth; see `cifar_resnet` for its options."""

    __name__: str

    def __call__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        pooling: Pooling = "global",
        init: Init = "pytorch",
    ) -> nn.Sequential:
        """Build the network."""


def _make_builder(depth: int, summary: str) -> CifarResNetBuilder:
    """Return `cifar_resnet` for one depth, as a function called ``resnet{depth}``."""

    def build(
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        pooling: Pooling = "global",
        init: Init = "pytorch",
    ) -> nn.Sequential:
        return cifar_resnet(
            depth, num_classes=num_classes, in_channels=in_channels, pooling=pooling, init=init
        )

    build.__name__ = build.__qualname__ = f"resnet{depth}"
    build.__doc__ = f"Build ResNet-{depth}: {summary}; see `cifar_resnet` for the options."
    return build


resnet8 = _make_builder(8, "1 block per group, for quick experiments")
resnet20 = _make_builder(20, "3 blocks per group, 0.27 million parameters")
resnet32 = _make_builder(32, "5 blocks per group, 0.46 million parameters")
resnet44 = _make_builder(44, "7 blocks per group, 0.66 million parameters")
resnet56 = _make_builder(56, "9 blocks per group, 0.85 million parameters")
resnet110 = _make_builder(110, "18 blocks per group, 1.7 million parameters")
resnet1202 = _make_builder(1202, "200 blocks per group, 19.4 million parameters")
