"""Labels that are out of range, reported as errors of the data."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from hocket.errors import DataError
from hocket.tree import Tree


@contextmanager
def label_errors_as_data_errors(predictions: Tree) -> Iterator[None]:
    """Context manager for a loss, which turns the IndexError of a bad label into a DataError.

    Args:
        predictions: Predictions that the targets are compared with, for the message.

    Raises:
        DataError: A target is no index of an output.
    """
    try:
        yield
    except IndexError as error:
        is_tensor = isinstance(predictions, Tensor)
        shape = tuple(predictions.shape) if is_tensor else "(a structure)"
        raise DataError(
            f"the targets do not fit the outputs of shape {shape}: {error}; "
            "labels must lie between 0 and the number of outputs less one"
        ) from error
