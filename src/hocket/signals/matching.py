"""Similarity matching: samples of one class should look alike to a stage, others should not.

Source: Nøkland, Eidnes, Training neural networks with local error signals, ICML 2019,
arXiv 1901.06656, its loss L_sim, and its public code where the paper is silent.
"""

# Shapes: B batch, C channels, H W sides of a map, P pixels of it, D features.

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from hocket.errors import DataError, OptionError
from hocket.signals.layout import detect_layout

FEW_CHANNELS = 3
"""Maps of so many channels, or fewer, are compared pixel by pixel, as in the paper's code."""


def similarities(features_BD: Tensor) -> Tensor:
    """Cosine of the angle between each two rows, once each row's own mean is taken off it.

    The matrix S(X) of the paper, (B, D) to (B, B). A row of equal numbers has no direction: its
    cosines are 0, and no gradient goes through them.

    >>> similarities(torch.tensor([[1.0, 2.0, 3.0], [0.0, 2.0, 4.0], [5.0, 5.0, 5.0]])).round()
    tensor([[1., 1., 0.],
            [1., 1., 0.],
            [0., 0., 0.]])
    """
    centred_BD = features_BD - features_BD.mean(1, keepdim=True)
    length_B1 = centred_BD.norm(dim=1, keepdim=True)
    # Equal numbers leave a rounding error behind, whose direction would mean nothing.
    error_B1 = torch.finfo(features_BD.dtype).eps * features_BD.norm(dim=1, keepdim=True)
    unit_BD = centred_BD / length_B1.where(length_B1 > error_B1, math.inf)
    cosines_BB: Tensor = unit_BD @ unit_BD.T
    return cosines_BB


@final
class Matching(nn.Module):
    """Mean squared difference of the similarities of a stage's output and of its targets.

    The output goes through ``layer`` first, which changes no shape. Maps are then compared by
    the standard deviation of each channel over its pixels, vectors by their features.

    Args:
        layer: Linear layer, or convolution, that trains with the stage.
        classes: Number of classes.
    """

    def __init__(self, layer: nn.Module, classes: int) -> None:
        super().__init__()
        self.layer = layer
        self.classes = classes

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        """The loss L_sim, divided by the number of pairs as in the paper's code.

        A single sample is like itself, whatever the stage does: its loss is 0.

        Args:
            output: The stage's output, (B, C, H, W) or (B, D).
            targets: Class numbers, (B,).

        Raises:
            DataError: The targets are not that.
        """
        if (
            not isinstance(targets, Tensor)
            or targets.is_floating_point()
            or targets.shape != output.shape[:1]
        ):
            got = (
                f"a tensor of shape {tuple(targets.shape)} and type {targets.dtype}"
                if isinstance(targets, Tensor)
                else f"a {type(targets).__name__}"
            )
            raise DataError(
                "similarity matching compares samples by their class numbers, and the targets "
                f"of {len(output)} samples are {got}, not a tensor of that many whole numbers; "
                "leave similarity at 0"
            )
        compared: Tensor = self.layer(output)
        # Cosines near 1 need more digits than autocast may leave them.
        with torch.autocast(output.device.type, enabled=False):
            wide = compared.to(torch.promote_types(compared.dtype, torch.float32))
            found_BB = similarities(_features(wide))
            # The cosines of one-hot labels: 1 in a class, and -1/(classes-1) between two.
            alike_BB = (targets[:, None] == targets).to(wide.dtype)
            wanted_BB = (self.classes * alike_BB - 1) / (self.classes - 1)
            return (found_BB - wanted_BB).square().mean()


def build_matching(shape: Sequence[int], classes: int) -> Matching:
    """Similarity matching for a stage's output, through a linear layer or a 3x3 convolution.

    Args:
        shape: The stage's output without the batch: (C, H, W) or (D,).
        classes: Number of classes.

    Raises:
        OptionError: The shape is neither, it has less than 3 features to compare, or there are
            less than 2 classes.

    >>> matching = build_matching((8, 6, 6), classes=10)
    >>> matching(torch.ones(4, 8, 6, 6), torch.tensor([1, 2, 3, 1])).shape
    torch.Size([])
    """
    layout = detect_layout(shape)
    if layout == "tokens":
        raise OptionError(
            f"similarity matching needs maps (C, H, W) or vectors (D,), a stage's output is "
            f"{tuple(shape)}; leave similarity at 0"
        )
    if classes < 2:
        raise OptionError(
            f"similarity matching tells classes apart, and there is {classes}; "
            "leave similarity at 0"
        )
    features = _features(torch.empty(1, *shape)).shape[1]
    if features < 3:
        # Less their mean, two numbers have one direction and its opposite, and no gradient.
        raise OptionError(
            f"similarity matching learns from 3 features or more, a stage's output of shape "
            f"{tuple(shape)} has {features}; cut elsewhere, or leave similarity at 0"
        )
    width = shape[0]
    layer = (
        nn.Conv2d(width, width, 3, padding=1, bias=False)
        if layout == "map"
        else nn.Linear(width, width, bias=False)
    )
    return Matching(layer, classes)


def _features(compared: Tensor) -> Tensor:
    """What samples are compared by, (B, D)."""
    if compared.dim() == 4 and compared.shape[1] > FEW_CHANNELS:
        pixels_BCP = compared.flatten(2)
        if pixels_BCP.shape[2] > 1:
            return pixels_BCP.std(2)
    return compared.flatten(1)
