"""A named data set, ready for training: its batches, and what a network must know of it."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from hocket.data.batches import Batches
from hocket.errors import DataError

Kind = Literal["images", "vectors", "tokens"]


@dataclass(frozen=True)
class Data:
    """What a loader returns.

    Args:
        name: The name by which `load` finds it, for titles and records.
        train: Batches of the training examples, shuffled anew in each epoch.
        test: Batches of the test examples, always the same in the same order.
        classes: Number of classes; targets are int64 from 0 to `classes` - 1.
        shape: One input without its batch dimension.
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
    """Refuses targets that a network with so many classes cannot predict.

    Args:
        targets: Class numbers of any shape, at least one.
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
