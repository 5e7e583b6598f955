"""A named data set: its batches, and the properties that a network depends on."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from hocket.data.batches import Batches
from hocket.errors import DataError

Kind = Literal["images", "vectors", "tokens"]


@dataclass(frozen=True)
class Data:
    """Data set that is ready for training.

    Args:
        name: Name in the registry, for titles and records.
        train: Batches of the training examples, shuffled differently in each epoch.
        test: Batches of the test examples, always the same in the same order.
        classes: Number of classes; targets are int64 from 0 to `classes` - 1.
        shape: Shape of one input without the batch dimension.
        kind: "images" are float32 (C, H, W), "vectors" float32 (D,), "tokens" int64 (T,) with
            targets of the same shape.
    """

    name: str
    train: Batches
    test: Batches
    classes: int
    shape: tuple[int, ...]
    kind: Kind


def check_targets(targets: Tensor, classes: int) -> None:
    """Check that targets are class numbers.

    Args:
        targets: Tensor of any shape with at least one element.
        classes: Number of classes.

    Raises:
        DataError: The targets are not integers, or one lies outside 0 ... `classes` - 1.
    """
    if targets.is_floating_point() or targets.is_complex():
        raise DataError(
            f"targets are {targets.dtype}; give class numbers as integers, for instance int64"
        )
    smallest, largest = int(targets.min()), int(targets.max())
    if smallest < 0 or largest >= classes:
        raise DataError(
            f"targets range from {smallest} to {largest}, but {classes} classes want "
            f"0 to {classes - 1}; renumber the targets or raise the number of classes"
        )
