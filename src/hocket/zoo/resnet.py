"""ResNet-18 for CIFAR.

Layers: `stem`, `layer1_0` ... `layer4_{n-1}` (group, then block from 0), `head`.

Source: He et al., arXiv 1512.03385, table 1. The 3x3 stem is from Zhuang et al., arXiv
1906.09108.
"""

from collections import OrderedDict

from torch import nn

from hocket.zoo.layer import Layer
from hocket.zoo.residual import Residual, basic_body, conv_norm_relu, conv_shortcut


def resnet18(*, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build ResNet-18 with the CIFAR stem (3x3, stride 1, no pooling), 11.2 million parameters.

    >>> list(dict(resnet18().named_children()))[:4]
    ['stem', 'layer1_0', 'layer1_1', 'layer2_0']
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=conv_norm_relu(in_channels, 64, 3))
    inputs = 64
    for group, width in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            stride = 2 if group > 1 and block == 0 else 1
            layers[f"layer{group}_{block}"] = Residual(
                basic_body(inputs, width, stride), conv_shortcut(inputs, width, stride)
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
