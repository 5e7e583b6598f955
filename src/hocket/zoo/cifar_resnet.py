"""The narrow ResNets for CIFAR: 6n+2 layers deep, 16, 32 and 64 channels wide.

Layers: `stem`, `layer1_0` ... `layer3_{n-1}` (group, then block from 0), `head`.

Sources: He et al., arXiv 1512.03385, section 4.2; Zhuang et al., arXiv 1906.09108, whose
official code has the corner pooling and PyTorch's initialisation.
"""

from collections import OrderedDict
from typing import Literal, get_args

from torch import nn

from hocket.errors import OptionError, listed
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
    """ResNet of basic blocks with parameter-free shortcuts, from (B, C, H, W) to (B, classes).

    Args:
        depth: Layers with weights: 6n+2 for n blocks in each of the three groups.
        num_classes: Length of the output.
        in_channels: Channels of the images.
        pooling: `global` averages the last map; `corner6` averages its first 6x6 pixels, which
            is what the official FDG code does with the 8x8 map of a 32x32 image.
        init: `pytorch` leaves PyTorch's defaults; `he` draws the convolutions from
            N(0, 2 / (kernel * kernel * outputs)), as the DDG code does.

    Raises:
        OptionError: There is no such depth, pooling or init.

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
    """Refuses what this family does not have, all problems at once."""
    problems = []
    if depth < 8 or (depth - 2) % 6:
        problems.append(f"depth {depth} is not 6n+2; ask for 8, 14, 20, ...")
    for option, value, known in (
        ("pooling", pooling, get_args(Pooling)),
        ("init", init, get_args(Init)),
    ):
        if value not in known:
            problems.append(f"{option} {value!r} is unknown; choose one of {', '.join(known)}")
    if problems:
        raise OptionError(listed("cannot build this CIFAR ResNet", problems))


def _block(inputs: int, outputs: int) -> Residual:
    """Basic block that halves the sides where it widens."""
    if inputs == outputs:
        return Residual(basic_body(inputs, outputs, 1), nn.Identity())
    return Residual(basic_body(inputs, outputs, 2), PadShortcut(inputs, outputs, 2))


def resnet8(
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    pooling: Pooling = "global",
    init: Init = "pytorch",
) -> nn.Sequential:
    """ResNet-8: one block per group, for quick experiments."""
    return cifar_resnet(
        8, num_classes=num_classes, in_channels=in_channels, pooling=pooling, init=init
    )


def resnet20(
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    pooling: Pooling = "global",
    init: Init = "pytorch",
) -> nn.Sequential:
    """ResNet-20: 3 blocks per group, 0.27 million parameters."""
    return cifar_resnet(
        20, num_classes=num_classes, in_channels=in_channels, pooling=pooling, init=init
    )


def resnet32(
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    pooling: Pooling = "global",
    init: Init = "pytorch",
) -> nn.Sequential:
    """ResNet-32: 5 blocks per group, 0.46 million parameters."""
    return cifar_resnet(
        32, num_classes=num_classes, in_channels=in_channels, pooling=pooling, init=init
    )


def resnet44(
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    pooling: Pooling = "global",
    init: Init = "pytorch",
) -> nn.Sequential:
    """ResNet-44: 7 blocks per group, 0.66 million parameters."""
    return cifar_resnet(
        44, num_classes=num_classes, in_channels=in_channels, pooling=pooling, init=init
    )


def resnet56(
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    pooling: Pooling = "global",
    init: Init = "pytorch",
) -> nn.Sequential:
    """ResNet-56: 9 blocks per group, 0.85 million parameters."""
    return cifar_resnet(
        56, num_classes=num_classes, in_channels=in_channels, pooling=pooling, init=init
    )


def resnet110(
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    pooling: Pooling = "global",
    init: Init = "pytorch",
) -> nn.Sequential:
    """ResNet-110: 18 blocks per group, 1.7 million parameters."""
    return cifar_resnet(
        110, num_classes=num_classes, in_channels=in_channels, pooling=pooling, init=init
    )


def resnet1202(
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    pooling: Pooling = "global",
    init: Init = "pytorch",
) -> nn.Sequential:
    """ResNet-1202: 200 blocks per group, 19.4 million parameters."""
    return cifar_resnet(
        1202, num_classes=num_classes, in_channels=in_channels, pooling=pooling, init=init
    )
