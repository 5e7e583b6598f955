"""Held-out examples: a share of the training examples instead of the test examples.

Choices that compare results, such as a learning rate, can then be made without the test.
"""

from dataclasses import replace
from typing import Protocol, Self, runtime_checkable

from hocket.data.batches import Examples
from hocket.data.dataset import Data
from hocket.errors import DataError, OptionError


@runtime_checkable
class Divisible(Examples, Protocol):
    """Examples that can be divided into two parts."""

    def divide(self, held: int, test: Self) -> tuple[Self, Self]:
        """Return the rest, and the held-out examples, served as the test examples are.

        Args:
            held: Number of examples to hold out.
            test: The test examples.
        """


def hold_out(data: Data, share: float) -> Data:
    """Return data whose test is a share of the training examples, which trains no more.

    The same examples are held out for every seed of the data.

    Args:
        data: The data; its own test examples are left out.
        share: Share of the training examples, above 0 and below 1.

    Raises:
        DataError: The examples cannot be divided.
        OptionError: The share is of no example, or of all.
    """
    train, test = data.train.examples, data.test.examples
    held = round(share * len(train))
    impossible = OptionError(
        f"hold_out is {share:g} of {len(train)} training examples, which is {held}; choose "
        "a share that holds out at least one and leaves at least one"
    )
    if not 0 < held < len(train):
        raise impossible
    if not isinstance(train, Divisible) or not isinstance(test, type(train)):
        raise DataError(
            f"the examples of {data.name!r} cannot be divided; give their class a method "
            "divide(held, test), or leave hold_out at 0"
        )
    rest, held_out = train.divide(held, test)
    if not len(rest):  # a text also loses what is left of its last window
        raise impossible
    return replace(
        data,
        train=data.train.with_options(examples=rest),
        test=data.test.with_options(examples=held_out),
    )
