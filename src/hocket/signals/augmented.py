"""Heads with layers like some later ones of the network, as AugLocal has them.

Ma, Wu, Si, Tan, ICLR 2024, arXiv 2402.17318: the choice of layers and the falling depth follow
the authors' code (``unifSamp``, with ``pyramid``). Plain version:
``tests/reference/auglocal.py``. A stage learns features that layers like the network's own can
use. Each of these is a 3x3 convolution with BatchNorm and ReLU, where the authors' code builds
the residual block or convolution of the network; on vectors and tokens, which the paper does
not have, it is a linear layer.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import ceil

from torch import nn

from hocket.errors import OptionError


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
    convolution = nn.Conv2d(
        present[0], channels, 3, (strides[0], strides[1]), padding=1, bias=False
    )
    trunk.extend([convolution, nn.BatchNorm2d(channels), nn.ReLU()])
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
    trunk.extend([nn.Linear(present[-1], features, bias=False), norm(features), nn.ReLU()])
    return [*present[:-1], features]
