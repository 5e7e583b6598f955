"""Heads: small networks that predict the targets from a stage's output.

They are the auxiliary networks of decoupled greedy learning: Belilovsky, Eickenberg, Oyallon,
ICML 2020, arXiv 1901.08164, section 4, and its code. On maps they are exactly those; a vector
is treated as a 1x1 map that needs no pooling, and tokens as vectors with LayerNorm in place of
BatchNorm. Other widths and depths of the perceptron are an extension. The kind `aug` is
AugLocal's (`augmented`).
"""

# Shapes: B batch, C channels, H W sides of a map, T tokens, D features, O outputs.

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil
from typing import Literal, final, get_args

from torch import Tensor, nn

from hocket.errors import OptionError
from hocket.options.ranges import check_choice
from hocket.signals.augmented import build_augmented_head
from hocket.signals.layout import detect_layout

HeadKind = Literal["mlp-sr", "mlp", "cnn", "aug"]


@final
class MeanOverTokens(nn.Module):
    """Mean of all tokens of a sample, (B, T, D) to (B, D), for a prediction per sample."""

    def forward(self, tokens_BTD: Tensor) -> Tensor:
        """Return the mean, (B, D)."""
        return tokens_BTD.mean(1)


def build_head(
    kind: HeadKind,
    shape: Sequence[int],
    outputs: int,
    *,
    width: float = 1.0,
    depth: int = 3,
    later: Sequence[Sequence[int]] = (),
) -> nn.Sequential:
    """Build a network from a stage's output to a prediction of the targets.

    Args:
        kind: `mlp-sr`: pool to a quarter of the side, three 1x1 convolutions, perceptron (the
            paper's default, about 4 % of a network's cost). `mlp`: without the convolutions.
            `cnn`: two 3x3 convolutions at full resolution, one linear layer. `aug`: layers
            like some later ones of the network.
        shape: Shape of the stage's output without the batch: (C, H, W), (T, D) or (D,).
        outputs: Number of outputs: classes, or the size of the vocabulary.
        width: Factor on the width of the perceptron's hidden layers, which in the paper have as
            many units as the perceptron has inputs: 4C on maps, else D. At least one unit.
        depth: Number of hidden layers of the perceptron; 0 for a linear prediction. Of `aug`,
            for which ``width`` is a factor on channels or features, the number of layers.
        later: Shapes of the outputs of chosen later layers, with as many dimensions, for `aug`.

    Returns:
        A network from (B, C, H, W) or (B, D) to (B, outputs), or (B, T, D) to (B, T, outputs).

    Raises:
        OptionError: Kind or shape is unknown, the kind needs maps or later layers, or
            ``outputs`` is below 1.

    >>> import torch
    >>> head = build_head("mlp", (8, 6, 6), outputs=10)
    >>> head(torch.zeros(2, 8, 6, 6)).shape
    torch.Size([2, 10])
    """
    check_choice("head", kind, get_args(HeadKind))
    if outputs < 1:
        raise OptionError(f"a head of {outputs} outputs predicts nothing; ask for at least 1")
    layout = detect_layout(shape)
    if kind == "aug":
        return build_augmented_head(shape, outputs, later, width=width, depth=depth)
    squeezes = 3 if kind == "mlp-sr" else 0
    if layout == "map":
        if kind == "cnn":
            return _cnn(shape[0], outputs)
        return _mlp_on_map(shape, _widths(4 * shape[0], width, depth), outputs, squeezes)
    if kind == "cnn":
        raise OptionError(
            f"head kind 'cnn' needs maps (C, H, W), a stage's output is {tuple(shape)}; "
            "use 'mlp-sr'"
        )
    norm = nn.BatchNorm1d if layout == "vector" else nn.LayerNorm
    return _mlp_on_features(_widths(shape[-1], width, depth), outputs, norm, squeezes)


def _widths(inputs: int, width: float, depth: int) -> list[int]:
    """Return the inputs of a perceptron and the units of each of its hidden layers."""
    return [inputs, *[max(1, round(width * inputs))] * depth]


def _mlp_on_map(
    shape: Sequence[int], widths: Sequence[int], outputs: int, squeezes: int
) -> nn.Sequential:
    """Build a head that pools to a quarter of the side, and has a perceptron on 2x2 pixels."""
    channels, height, width = shape
    trunk = nn.Sequential(nn.AdaptiveAvgPool2d((ceil(height / 4), ceil(width / 4))))
    for _ in range(squeezes):
        trunk.extend(_conv(channels, 1))
    readout = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    readout.extend(_perceptron(widths, outputs, nn.BatchNorm1d))
    return nn.Sequential(OrderedDict(trunk=trunk, readout=readout))


def _mlp_on_features(
    widths: Sequence[int], outputs: int, norm: Callable[[int], nn.Module], squeezes: int
) -> nn.Sequential:
    """Build the same on vectors, which need no pooling."""
    features = widths[0]
    trunk = nn.Sequential()
    for _ in range(squeezes):
        trunk.extend([nn.Linear(features, features, bias=False), norm(features), nn.ReLU()])
    return nn.Sequential(OrderedDict(trunk=trunk, readout=_perceptron(widths, outputs, norm)))


def _cnn(channels: int, outputs: int) -> nn.Sequential:
    """Build two 3x3 convolutions, and one linear layer on normalised 2x2 pixels."""
    trunk = _conv(channels, 3).extend(_conv(channels, 3))
    readout = nn.Sequential(
        nn.AdaptiveAvgPool2d(2),
        nn.BatchNorm2d(channels),
        nn.Flatten(),
        nn.Linear(4 * channels, outputs),
    )
    return nn.Sequential(OrderedDict(trunk=trunk, readout=readout))


def _conv(channels: int, kernel: int) -> nn.Sequential:
    """Build a convolution that keeps the shape, with BatchNorm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
    )


def _perceptron(
    widths: Sequence[int], outputs: int, norm: Callable[[int], nn.Module]
) -> nn.Sequential:
    """Build hidden layers, each from one width to the next, and the layer that predicts."""
    perceptron = nn.Sequential()
    for inputs, units in pairwise(widths):
        perceptron.extend([nn.Linear(inputs, units), norm(units), nn.ReLU()])
    return perceptron.append(nn.Linear(widths[-1], outputs))
