"""The small CIFAR networks on which DGL and DNI were studied.

Layers: `block0` ... `block5` (`block2` in `dni3`), `head`. Convolutions here have no bias: the
norm behind them would cancel it.

Source: Belilovsky, Eickenberg, Oyallon, ICML 2020, arXiv 1901.08164, section 4, and its code.
"""

from collections import OrderedDict
from typing import Literal, get_args

from torch import nn

from hocket.errors import OptionError
from hocket.zoo.layer import Layer
from hocket.zoo.residual import conv_norm_relu

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
    """Six 3x3 convolutions of 128 to 512 channels and a two-layer perceptron.

    Args:
        num_classes: Length of the output.
        in_channels: Channels of the images.
        pooling: Where the sides halve and the channels double: `aux` before blocks 1 and 3, as
            in the study of auxiliary networks; `buffer` before blocks 2 and 4, as in the
            experiments with a replay buffer.
        width: Channels of the first block, 128 in the paper.

    Raises:
        OptionError: There is no such pooling, or no channels.
    """
    if width < 1:
        raise OptionError(f"dgl6: width is {width}; use at least 1")
    if pooling not in get_args(Pooling):
        known = ", ".join(get_args(Pooling))
        raise OptionError(f"dgl6: pooling {pooling!r} is unknown; choose one of {known}")
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
    layers["head"] = _perceptron_head(inputs, num_classes)
    return nn.Sequential(layers)


def _perceptron_head(channels: int, num_classes: int) -> nn.Sequential:
    """Average to 2x2 pixels, then two hidden layers of 4 * channels.

    The paper pools to a quarter of the side before that: of an 8x8 map, the same 2x2 pixels.
    """
    width = 4 * channels
    return Layer(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(2),
            flatten=nn.Flatten(),
            linear1=nn.Linear(width, width),
            norm1=nn.BatchNorm1d(width),
            relu1=nn.ReLU(),
            linear2=nn.Linear(width, width),
            norm2=nn.BatchNorm1d(width),
            relu2=nn.ReLU(),
            linear3=nn.Linear(width, num_classes),
        )
    )


def dni3(*, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Three 5x5 convolutions of 128 channels, each followed by 3x3 pooling: max, mean, mean.

    Images need sides of at least 27 pixels; of 32x32 the last map is a single pixel.

    Source: Jaderberg et al., arXiv 1608.05343, appendix, as the DGL code has it.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = in_channels
    for block, pool in enumerate((nn.MaxPool2d(3), nn.AvgPool2d(3), nn.AvgPool2d(3))):
        layer = conv_norm_relu(inputs, 128, 5)
        layer.add_module("pool", pool)
        layers[f"block{block}"] = layer
        inputs = 128
    layers["head"] = Layer(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            linear=nn.Linear(128, num_classes),
        )
    )
    return nn.Sequential(layers)
