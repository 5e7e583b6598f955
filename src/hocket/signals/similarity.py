"""Signal of a local loss with similarity matching: samples of one class should look alike.

Source: Nøkland, Eidnes, Training neural networks with local error signals, ICML 2019,
arXiv 1901.06656, its loss L_sim, and its public code where the paper is silent.
"""

# Shapes: B batch, C channels, H W sides of a map, P pixels of it, D features.

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from hocket.errors import DataError, OptionError
from hocket.options.hints import wrong_fields
from hocket.signals.local import Local
from hocket.signals.signal import BackwardRoots, Signal, SignalInput, StageShapes, detect_layout
from hocket.tree import Tree

FEW_CHANNELS = 3
"""Maps with at most this number of channels are compared by pixels, as in the paper's code."""


def similarities(features_BD: Tensor) -> Tensor:
    """Return the cosine of the angle between each two rows, less the mean of each row.

    The matrix S(X) of the paper, (B, D) to (B, B). A row of equal numbers has no direction: its
    cosines are 0, and no gradient goes through them.

    >>> similarities(torch.tensor([[1.0, 2.0, 3.0], [0.0, 2.0, 4.0], [5.0, 5.0, 5.0]])).round()
    tensor([[1., 1., 0.],
            [1., 1., 0.],
            [0., 0., 0.]])
    """
    centred_BD = features_BD - features_BD.mean(1, keepdim=True)
    length_B1 = centred_BD.norm(dim=1, keepdim=True)
    # Equal numbers leave a rounding error, whose direction would be meaningless.
    error_B1 = torch.finfo(features_BD.dtype).eps * features_BD.norm(dim=1, keepdim=True)
    equal_B1 = (features_BD == features_BD[:, :1]).all(1, keepdim=True)
    unit_BD = centred_BD / length_B1.where((length_B1 > error_B1) & ~equal_B1, math.inf)
    cosines_BB: Tensor = unit_BD @ unit_BD.T
    return cosines_BB


@final
class SimilarityMatching(nn.Module):
    """Loss L_sim, the mean of (S(h) - S(y))^2 over all pairs of samples.

    S are the similarities of the samples' outputs h, and of their targets y.
    The output goes through ``layer`` first, which keeps its shape. Maps are then compared by
    the standard deviation of each channel over its pixels, vectors by their features.

    Args:
        layer: Linear layer or convolution that trains with the stage.
        classes: Number of classes.
    """

    def __init__(self, layer: nn.Module, classes: int) -> None:
        super().__init__()
        self.layer = layer
        self.classes = classes

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the loss L_sim, a scalar: a mean over pairs, as in the paper's code.

        The loss of a batch of one sample is 0.

        Args:
            output: The stage's output, (B, C, H, W) or (B, D).
            targets: Class indices, (B,).

        Raises:
            DataError: The targets are not one class index for each sample.
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
                "similarity matching compares samples by their class indices, and the targets "
                f"of {len(output)} samples are {got}, not a tensor of that many whole numbers; "
                "leave similarity at 0"
            )
        # On a GPU that look would wait for all its work, so the loss becomes NaN there instead.
        ignored = (targets < 0).any()
        if not targets.is_cuda and ignored:
            raise DataError(
                "similarity matching compares samples by their class indices, and some are "
                "below 0, as ignored ones are; leave those samples out, or similarity at 0"
            )
        projected: Tensor = self.layer(output)
        # Cosines near 1 need more precision than autocast may use.
        with torch.autocast(output.device.type, enabled=False):
            wide = projected.to(torch.promote_types(projected.dtype, torch.float32))
            output_BB = similarities(_features(wide))
            # Cosines of one-hot labels: 1 in a class, and -1/(classes-1) between two.
            same_BB = (targets[:, None] == targets).to(wide.dtype)
            target_BB = (self.classes * same_BB - 1) / (self.classes - 1)
            loss = (output_BB - target_BB).square().mean()
            return torch.where(ignored, math.nan, loss) if targets.is_cuda else loss


def build_matching(shape: Sequence[int], classes: int) -> SimilarityMatching:
    """Build similarity matching for a stage's output, with a linear layer or a 3x3 convolution.

    Args:
        shape: Shape of the stage's output without the batch: (C, H, W) or (D,).
        classes: Number of classes.

    Raises:
        OptionError: The shape is neither, there are less than 3 features to compare, or less
            than 2 classes.

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
            f"similarity matching needs at least 2 classes, and there is {classes}; "
            "leave similarity at 0"
        )
    features = _features(torch.empty(1, *shape)).shape[1]
    if features < 3:
        # Less their mean, two numbers have only one direction and its opposite, so no gradient.
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
    return SimilarityMatching(layer, classes)


def _features(output: Tensor) -> Tensor:
    """Return the features that samples are compared by, (B, D)."""
    if output.dim() == 4 and output.shape[1] > FEW_CHANNELS:
        pixels_BCP = output.flatten(2)
        if pixels_BCP.shape[2] > 1:
            return pixels_BCP.std(2)
    return output.flatten(1)


@dataclass(frozen=True)
class Similarity(Signal):
    """Loss of a head and similarity matching: ``(1 - weight) L_pred + weight L_sim``.

    The local loss L_predsim of Nøkland and Eidnes, ICML 2019, arXiv 1901.06656. Each pair of
    samples in a batch is compared, so L_sim depends on the batch and is no mean over samples.

    Attributes:
        weight: Weight of similarity matching, above 0 and below 1; 0.99 in the paper.
        prediction: Signal of the head.

    Raises:
        OptionError: The weight is out of range.
    """

    weight: float = 0.99
    prediction: Local = field(default_factory=Local)

    def __post_init__(self) -> None:
        if wrong_fields(self) or not 0 < self.weight < 1:
            raise OptionError(
                f"similarity is {self.weight!r}; use a number in (0, 1), or 0 to leave it off"
            )

    def build_network(self, shapes: StageShapes) -> nn.Module:
        """Build the head, and the layer that compares samples; see the base."""
        # The head draws random numbers first, so that it starts as it would alone.
        head = self.prediction.build_network(shapes)
        classes = shapes.prediction[-1] if shapes.prediction else 1
        matching = build_matching(shapes.output, classes)
        return nn.ModuleDict({"head": head, "matching": matching})

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the weighted sum of both losses.

        Raises:
            DataError: The targets are not a class index for each sample.
        """
        head, matching = map(network.get_submodule, ("head", "matching"))
        matching_loss = matching(inputs.output, inputs.targets)
        (head_loss,) = self.prediction.backward_roots(head, inputs).roots
        value = (1 - self.weight) * head_loss + self.weight * matching_loss
        return BackwardRoots.of_loss(value)

    def predict(self, network: nn.Module, output: Tree) -> Tensor:
        """Return the head's prediction, (B, O) of O outputs."""
        return self.prediction.predict(network.get_submodule("head"), output)
