"""ResNet-18 for CIFAR, and ResNets of bottleneck blocks for ImageNet.

Layers: `stem`, `layer1_0` ... `layer4_{n-1}` (group, then block from 0), `head`.

Source: He et al., arXiv 1512.03385, table 1. The 3x3 stem is from Zhuang et al., arXiv
1906.09108.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import nn

from hocket.zoo.layer import Layer
from hocket.zoo.residual import (
    Residual,
    basic_body,
    bottleneck_body,
    conv_norm_relu,
    conv_shortcut,
)

Body = Callable[[int, int, int], nn.Module]


def resnet18(*, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build ResNet-18 with the CIFAR stem (3x3, stride 1, no pooling), 11.2 million parameters.

    >>> list(dict(resnet18().named_children()))[:4]
    ['stem', 'layer1_0', 'layer1_1', 'layer2_0']
    """
    stem = conv_norm_relu(in_channels, 64, 3)
    return _build_resnet(stem, basic_body, (64, 128, 256, 512), (2, 2, 2, 2), num_classes)


def resnet50(*, num_classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """Build ResNet-50 for ImageNet: 16 bottlenecks, 25,557,032 parameters."""
    return _build_imagenet_resnet((3, 4, 6, 3), num_classes, in_channels)


def resnet101(*, num_classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """Build ResNet-101 for ImageNet: 33 bottlenecks, 44,549,160 parameters."""
    return _build_imagenet_resnet((3, 4, 23, 3), num_classes, in_channels)


def resnet152(*, num_classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """Build ResNet-152 for ImageNet: 50 bottlenecks, 60,192,808 parameters."""
    return _build_imagenet_resnet((3, 8, 36, 3), num_classes, in_channels)


def _build_imagenet_resnet(
    blocks: Sequence[int], num_classes: int, in_channels: int
) -> nn.Sequential:
    """Build bottleneck blocks after the 7x7 stem that divides the sides by four."""
    stem = conv_norm_relu(in_channels, 64, 7, stride=2)
    stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    return _build_resnet(stem, bottleneck_body, (256, 512, 1024, 2048), blocks, num_classes)


def _build_resnet(
    stem: nn.Module, body: Body, widths: Sequence[int], blocks: Sequence[int], num_classes: int
) -> nn.Sequential:
    """Append four groups of blocks and the head to a stem of 64 channels.

    Args:
        stem: First layer.
        body: Builder of the residual branch of a block.
        widths: Output channels of each group; all groups but the first halve the sides.
        blocks: Number of blocks in each group.
        num_classes: Length of the output.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=stem)
    inputs = 64
    for group, (width, count) in enumerate(zip(widths, blocks, strict=True), start=1):
        for block in range(count):
            stride = 2 if group > 1 and block == 0 else 1
            layers[f"layer{group}_{block}"] = Residual(
                body(inputs, width, stride), conv_shortcut(inputs, width, stride)
            )
            inputs = width
    layers["head"] = Layer(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            linear=nn.Linear(inputs, num_classes),
        )
    )
    return nn.Sequential(layers)
