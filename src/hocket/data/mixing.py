"""Mixup and CutMix: training inputs that are two examples, and targets that are their shares.

Sources: Zhang et al., mixup: beyond empirical risk minimization, ICLR 2018, arXiv 1710.09412;
Yun et al., CutMix: regularization strategy to train strong classifiers with localizable
features, ICCV 2019, arXiv 1905.04899.
"""

# Shapes: B batch, C classes, H height, W width.

from dataclasses import dataclass
from math import sqrt
from typing import final

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from hocket.data.batches import Examples, move_examples
from hocket.data.dataset import check_targets
from hocket.errors import DataError, OptionError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range


@final
@dataclass(frozen=True)
class Mix:
    """Mixing of each example of a batch with another one of the batch, at random.

    The share of an example is drawn from Beta(alpha, alpha), once for each batch. If both ways
    are on, each batch is mixed in one of them, with equal probability.

    Args:
        classes: C, the number of classes.
        mixup: Alpha of mixup, which adds two inputs by their shares; 0 for off.
        cutmix: Alpha of CutMix, which replaces a rectangle of an image by the same part of
            another, with the share as its area; 0 for off.

    Raises:
        OptionError: An option is out of range, or both ways are off.
    """

    classes: int
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        problems = wrong_fields(self) + out_of_range(
            self, {"classes": Range(least=1), "mixup": Range(least=0), "cutmix": Range(least=0)}
        )
        if not problems and not self.mixup and not self.cutmix:
            problems.append("mixup and cutmix are both 0, which mixes nothing; give one")
        raise_problems(OptionError, "batches cannot be mixed", problems)

    def __call__(
        self, inputs: Tensor, targets_B: Tensor, rng: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return mixed inputs (B, ...), and the shares of the classes as targets (B, C).

        Args:
            inputs: Floating point numbers (B, ...); for CutMix images (B, channels, H, W).
            targets_B: Class of each example, (B,).
            rng: Generator to draw from; None for PyTorch's global one.

        Raises:
            DataError: The inputs are of another kind, or a target is no class.
        """
        if not inputs.is_floating_point() or targets_B.shape != inputs.shape[:1]:
            raise DataError(
                f"inputs {tuple(inputs.shape)} of {inputs.dtype} with targets "
                f"{tuple(targets_B.shape)} cannot be mixed; wanted floating point numbers "
                "(B, ...) and one class for each, (B,)"
            )
        if self.cutmix and inputs.dim() != 4:
            raise DataError(
                f"cutmix replaces parts of images (B, channels, H, W), and the inputs have the "
                f"shape {tuple(inputs.shape)}; use mixup"
            )
        check_targets(targets_B, self.classes)

        # Draw another example for each, and the share of each.
        others_B = torch.randperm(len(inputs), generator=rng, device="cpu")
        # PyTorch cannot draw from Beta with a given generator.
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=rng, device="cpu")))
        if self.cutmix and (not self.mixup or draw.random() < 0.5):
            # Replace a rectangle around a random centre; what lies outside is cut off.
            share = float(draw.beta(self.cutmix, self.cutmix))
            height, width = inputs.shape[2:]
            sides = []
            for length in (height, width):
                centre = int(draw.integers(length))
                half = round(length * sqrt(1 - share)) // 2
                sides.append((max(centre - half, 0), min(centre + half, length)))
            (top, bottom), (left, right) = sides
            others = inputs[others_B]
            inputs = inputs.clone()
            inputs[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
            share = 1 - (bottom - top) * (right - left) / (height * width)
        else:
            share = float(draw.beta(self.mixup, self.mixup))
            inputs = inputs[others_B].lerp(inputs, share)

        # Mix the targets by the same share.
        one_hot_BC = F.one_hot(targets_B.long(), self.classes).to(inputs.dtype)
        return inputs, one_hot_BC[others_B].lerp(one_hot_BC, share)


@final
class MixedExamples:
    """Examples that are mixed batch by batch.

    Args:
        examples: Examples with one class each.
        mix: The mixing.
    """

    def __init__(self, examples: Examples, mix: Mix) -> None:
        self.examples = examples
        self.mix = mix

    def __len__(self) -> int:
        return len(self.examples)

    def to(self, device: torch.device) -> "MixedExamples":
        """Return the same examples, mixed on a device."""
        return MixedExamples(move_examples(self.examples, device), self.mix)

    def take(self, rows_B: Tensor, rng: Generator) -> tuple[Tensor, Tensor]:
        """Return mixed inputs (B, ...) of these rows and targets (B, C)."""
        return self.mix(*self.examples.take(rows_B, rng), rng)
