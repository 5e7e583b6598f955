"""Targets that do not fit, told as an error of the data."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from hocket.errors import DataError
from hocket.tree import Tree


@contextmanager
def checked_targets(predictions: Tree) -> Iterator[None]:
    """Inside, targets meet predictions; a class number that is none becomes a DataError.

    Raises:
        DataError: A target names no output.
    """
    try:
        yield
    except IndexError as error:
        one = isinstance(predictions, Tensor)
        shape = tuple(predictions.shape) if one else "(a structure)"
        raise DataError(
            f"the targets do not fit the outputs of shape {shape}: {error}; "
            "labels must lie between 0 and the number of outputs less one"
        ) from error
