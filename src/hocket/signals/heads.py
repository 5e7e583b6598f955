"""Heads: small networks that predict the targets from a stage's output.

They are the auxiliary networks of decoupled greedy learning: Belilovsky, Eickenberg, Oyallon,
ICML 2020, arXiv 1901.08164, section 4, and its code. On maps they are exactly those; a vector
is treated as a 1x1 map that needs no pooling, and tokens as vectors with LayerNorm in place of
BatchNorm. Other widths and depths of the perceptron are an extension.

The kind `aug` has layers like some later ones of the network, as in AugLocal: Ma, Wu, Si, Tan,
ICLR 2024, arXiv 2402.17318. The choice of layers and the falling depth follow the authors' code
(``unifSamp``, with ``pyramid``). Plain version: ``tests/reference/auglocal.py``. A stage learns
features that layers like the network's own can use. Each of these is a 3x3 convolution with
BatchNorm and ReLU, where the authors' code builds the residual block or convolution of the
network; on vectors and tokens, which the paper does not have, it is a linear layer.
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
from hocket.signals.signal import detect_layout

HeadKind = Literal["mlp-sr", "mlp", "cnn", "aug"]


def pyramid_depth(depth: int, place: float) -> int:
    """Return the number of layers of the head of a stage: fewer at later stages, at least 1.

    Args:
        depth: Number of layers of the first stage's head.
        place: Place of the stage among those with a head, from 0 to 1.

    >>> [pyramid_depth(5, place) for place in (0, 0.5, 1)]
    [5, 3, 1]
    """
    return min(depth, max(1, round(depth * (1 - place) + place)))


def spread_evenly(count: int, wanted: int, before: int = 0) -> list[int]:
    """Return numbers of later layers at equal distances, up to the last layer.

    Args:
        count: Number of later layers.
        wanted: Number of layers to choose; all of them if there are fewer.
        before: Number of layers in front of the one that the head is on. The authors' code
            rounds the numbers of the whole network, and so halves to the even of these.

    >>> spread_evenly(9, 3), spread_evenly(2, 3), spread_evenly(14, 4, 1)
    ([2, 5, 8], [0, 1], [2, 6, 10, 13])
    """
    kept = min(count, wanted)
    places = (round(before + count / kept * n) for n in range(1, kept + 1))
    return [place - before - 1 for place in places]


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
        trunk.extend(_conv(channels, channels, 1))
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
        trunk.extend(_linear(features, features, norm))
    return nn.Sequential(OrderedDict(trunk=trunk, readout=_perceptron(widths, outputs, norm)))


def _cnn(channels: int, outputs: int) -> nn.Sequential:
    """Build two 3x3 convolutions, and one linear layer on normalised 2x2 pixels."""
    trunk = _conv(channels, channels, 3).extend(_conv(channels, channels, 3))
    readout = nn.Sequential(
        nn.AdaptiveAvgPool2d(2),
        nn.BatchNorm2d(channels),
        nn.Flatten(),
        nn.Linear(4 * channels, outputs),
    )
    return nn.Sequential(OrderedDict(trunk=trunk, readout=readout))


def _conv(
    inputs: int, outputs: int, kernel: int, stride: tuple[int, int] = (1, 1)
) -> nn.Sequential:
    """Build a convolution that keeps the shape but for its stride, with BatchNorm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def _linear(inputs: int, outputs: int, norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Build a linear layer with normalisation and ReLU."""
    return nn.Sequential(nn.Linear(inputs, outputs, bias=False), norm(outputs), nn.ReLU())


def _perceptron(
    widths: Sequence[int], outputs: int, norm: Callable[[int], nn.Module]
) -> nn.Sequential:
    """Build hidden layers, each from one width to the next, and the layer that predicts."""
    perceptron = nn.Sequential()
    for inputs, units in pairwise(widths):
        perceptron.extend([nn.Linear(inputs, units), norm(units), nn.ReLU()])
    return perceptron.append(nn.Linear(widths[-1], outputs))


def build_augmented_head(
    shape: Sequence[int],
    outputs: int,
    later: Sequence[Sequence[int]],
    *,
    width: float,
    depth: int,
) -> nn.Sequential:
    """Build a network from a stage's output to a prediction of the targets.

    Args:
        shape: Shape of the stage's output without the batch: (C, H, W), (T, D) or (D,).
        outputs: Number of outputs.
        later: Shapes of the outputs of the chosen later layers, with as many dimensions.
        width: Factor on their channels or features.
        depth: Number of layers that were to be chosen; 0 for a linear prediction.

    Returns:
        A network from (B, C, H, W) or (B, D) to (B, outputs), or (B, T, D) to (B, T, outputs).

    Raises:
        OptionError: There is no later layer.
    """
    if depth and not later:
        raise OptionError(
            "the head 'aug' has layers like later ones of the network, and behind a stage with "
            f"an output of shape {tuple(shape)} there is none but the last; of a network that "
            "is no nn.Sequential only the outputs of stages are known; cut earlier or into "
            "more stages, or use the head 'mlp-sr'"
        )
    trunk, present = nn.Sequential(), list(shape)
    append = _append_convolution if len(shape) == 3 else _append_linear
    for wanted in later:
        present = append(trunk, present, wanted, width)
    readout = nn.Sequential()
    if len(shape) == 3:
        readout.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    readout.append(nn.Linear(present[0 if len(shape) == 3 else -1], outputs))
    return nn.Sequential(OrderedDict(trunk=trunk, readout=readout))


def _append_convolution(
    trunk: nn.Sequential, present: Sequence[int], wanted: Sequence[int], width: float
) -> list[int]:
    """Append a convolution to the shape of a later layer; return the shape of its output.

    Args:
        trunk: Layers before it.
        present: Shape of their output.
        wanted: Shape of the output of the later layer.
        width: Factor on its channels.
    """
    channels = max(1, round(width * wanted[0]))
    strides = [
        max(1, round(side / to)) for side, to in zip(present[1:], wanted[1:], strict=True)
    ]
    trunk.extend(_conv(present[0], channels, 3, (strides[0], strides[1])))
    sides = zip(present[1:], strides, strict=True)
    return [channels, *(ceil(side / stride) for side, stride in sides)]


def _append_linear(
    trunk: nn.Sequential, present: Sequence[int], wanted: Sequence[int], width: float
) -> list[int]:
    """Append a linear layer to the shape of a later layer; return the shape of its output.

    Args:
        trunk: Layers before it.
        present: Shape of their output.
        wanted: Shape of the output of the later layer.
        width: Factor on its features.
    """
    features = max(1, round(width * wanted[-1]))
    norm = nn.LayerNorm if len(present) == 2 else nn.BatchNorm1d
    trunk.extend(_linear(present[-1], features, norm))
    return [*present[:-1], features]
