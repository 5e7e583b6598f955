"""The small CIFAR networks on which DGL and DNI were studied.

Layers: `block0` ... `block5` (`block2` in `dni3`), `head`. Convolutions here have no bias: the
norm after them would cancel it.

Source: Belilovsky, Eickenberg, Oyallon, ICML 2020, arXiv 1901.08164, section 4, and its code.
"""

from collections import OrderedDict
from typing import Literal, get_args

from torch import nn

from hocket.errors import OptionError, raise_problems
from hocket.options.ranges import wrong_choice, wrong_counts
from hocket.zoo.layer import Layer
from hocket.zoo.residual import average_head, conv_norm_relu

Pooling = Literal["aux", "buffer"]

# Blocks, counted from 0, that halve the sides and double the channels.
_POOLED_BLOCKS = {"aux": (1, 3), "buffer": (2, 4)}


def dgl6(
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    pooling: Pooling = "aux",
    width: int = 128,
) -> nn.Sequential:
    """Build six 3x3 convolutions of 128 to 512 channels and a perceptron of two hidden layers.

    The network maps images (B, C, H, W) to scores (B, num_classes).

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        pooling: Blocks before which the sides halve and the channels double: `aux` for blocks 1
            and 3, as in the study of auxiliary networks; `buffer` for blocks 2 and 4, as in the
            experiments with a replay buffer.
        width: Channels of the first block, 128 in the paper.

    Raises:
        OptionError: The pooling is not valid, or the width is below 1.
    """
    problems = wrong_choice("pooling", pooling, get_args(Pooling))
    problems += wrong_counts(1, width=width)
    raise_problems(OptionError, "cannot build this dgl6", problems)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = in_channels
    for block in range(6):
        layer = Layer()
        if block in _POOLED_BLOCKS[pooling]:
            layer.add_module("pool", nn.MaxPool2d(2))
            width *= 2
        for name, module in conv_norm_relu(inputs, width, 3).named_children():
            layer.add_module(name, module)
        layers[f"block{block}"] = layer
        inputs = width
    # The paper pools to a quarter of the side instead: the same 2x2 pixels for an 8x8 map.
    features = 4 * inputs
    layers["head"] = Layer(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(2),
            flatten=nn.Flatten(),
            linear1=nn.Linear(features, features),
            norm1=nn.BatchNorm1d(features),
            relu1=nn.ReLU(),
            linear2=nn.Linear(features, features),
            norm2=nn.BatchNorm1d(features),
            relu2=nn.ReLU(),
            linear3=nn.Linear(features, num_classes),
        )
    )
    return nn.Sequential(layers)


def dni3(*, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build three 5x5 convolutions of 128 channels, each followed by 3x3 pooling.

    The pooling is max, mean, mean. Images (B, C, H, W) need sides of at least 27 pixels; for
    sides of 32 the last map is a single pixel.

    Source: Jaderberg et al., arXiv 1608.05343, appendix, as implemented in the DGL code.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = in_channels
    for block, pool in enumerate((nn.MaxPool2d(3), nn.AvgPool2d(3), nn.AvgPool2d(3))):
        layer = conv_norm_relu(inputs, 128, 5)
        layer.add_module("pool", pool)
        layers[f"block{block}"] = layer
        inputs = 128
    layers["head"] = average_head(128, num_classes)
    return nn.Sequential(layers)
