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

from hocket.errors import OptionError, Problems
from hocket.options.ranges import wrong_choice
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
    Problems(wrong_choice("head", kind, get_args(HeadKind))).raise_together("")
    if outputs < 1:
        raise OptionError(f"a head of {outputs} outputs predicts nothing; ask for at least 1")
    layout = detect_layout(shape)
    if kind == "cnn" and layout != "map":
        raise OptionError(
            f"head kind 'cnn' needs maps (C, H, W), a stage's output is {tuple(shape)}; "
            "use 'mlp-sr'"
        )
    if kind == "cnn":
        return _cnn(shape[0], outputs)
    if kind == "aug":
        return _augmented(shape, outputs, later, width=width, depth=depth)

    # The inputs of the perceptron, and the units of each of its hidden layers.
    inputs = 4 * shape[0] if layout == "map" else shape[-1]
    widths = [inputs, *[max(1, round(width * inputs))] * depth]

    # Layers before it: on maps they pool to a quarter of the side, on others nothing.
    norm = nn.LayerNorm if layout == "tokens" else nn.BatchNorm1d
    trunk, readout = nn.Sequential(), nn.Sequential()
    if layout == "map":
        trunk.append(nn.AdaptiveAvgPool2d((ceil(shape[1] / 4), ceil(shape[2] / 4))))
        readout.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten()])
    for _ in range(3 if kind == "mlp-sr" else 0):
        if layout == "map":
            trunk.extend(_conv(shape[0], shape[0], 1))
        else:
            trunk.extend(_linear(inputs, inputs, norm))

    # The perceptron: hidden layers, each from one width to the next, and a prediction.
    for before, units in pairwise(widths):
        readout.extend([nn.Linear(before, units), norm(units), nn.ReLU()])
    readout.append(nn.Linear(widths[-1], outputs))
    return nn.Sequential(OrderedDict(trunk=trunk, readout=readout))


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


def _augmented(
    shape: Sequence[int],
    outputs: int,
    later: Sequence[Sequence[int]],
    *,
    width: float,
    depth: int,
) -> nn.Sequential:
    """Build the head `aug`; see `build_head`.

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

    # Linear layers to the features of the later layers.
    trunk, readout = nn.Sequential(), nn.Sequential()
    if len(shape) < 3:
        norm, features = nn.LayerNorm if len(shape) == 2 else nn.BatchNorm1d, shape[-1]
        for wanted in later:
            before, features = features, max(1, round(width * wanted[-1]))
            trunk.extend(_linear(before, features, norm))
        readout.append(nn.Linear(features, outputs))
        return nn.Sequential(OrderedDict(trunk=trunk, readout=readout))

    # Convolutions to their channels, with strides to their sides.
    channels, *sides = shape
    for wanted in later:
        before, channels = channels, max(1, round(width * wanted[0]))
        strides = [max(1, round(side / to)) for side, to in zip(sides, wanted[1:], strict=True)]
        trunk.extend(_conv(before, channels, 3, (strides[0], strides[1])))
        sides = [ceil(side / stride) for side, stride in zip(sides, strides, strict=True)]
    readout.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)])
    return nn.Sequential(OrderedDict(trunk=trunk, readout=readout))
