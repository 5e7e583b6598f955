"""A named data set: its batches, and the properties that a network depends on."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from hocket.data.batches import Batches, move_examples
from hocket.errors import DataError, OptionError
from hocket.options.hints import matches_hint
from hocket.options.ranges import Range

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

    def to(self, device: torch.device | str) -> "Data":
        """Return the same data, whose batches are made on a device; files stay where they are.

        Args:
            device: The device, with room for all examples.
        """
        train, test = (
            batches.with_options(examples=move_examples(batches.examples, torch.device(device)))
            for batches in (self.train, self.test)
        )
        return replace(self, train=train, test=test)


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


def hold_out(data: Data, share: float) -> Data:
    """Return data whose test is a share of the training examples, which trains no more.

    Choices that compare results, such as a learning rate, can then be made without the test.

    The same examples are held out for every seed of the data.

    Args:
        data: The data; its own test examples are left out.
        share: Share of the training examples, above 0 and below 1.

    Raises:
        DataError: The examples cannot be divided.
        OptionError: The share is out of its range, or of no example, or of all.
    """
    limits = Range(above=0, below=1)
    if not matches_hint(share, float) or share not in limits:
        raise OptionError(f"hold_out is {share!r}; use {limits}")
    train, test = data.train.examples, data.test.examples
    held = round(share * len(train))
    impossible = OptionError(
        f"hold_out is {share:g} of {len(train)} training examples, which is {held}; choose "
        "a share that holds out at least one and leaves at least one"
    )
    if not 0 < held < len(train):
        raise impossible
    divide = getattr(train, "divide", None)
    if divide is None or not isinstance(test, type(train)):
        raise DataError(
            f"the examples of {data.name!r} cannot be divided; give their class a method "
            "divide(held, test), or leave hold_out at 0"
        )
    rest, held_out = divide(held, test)
    if not len(rest):  # a text also loses what is left of its last window
        raise impossible
    return replace(
        data,
        train=data.train.with_options(examples=rest),
        test=data.test.with_options(examples=held_out),
    )
