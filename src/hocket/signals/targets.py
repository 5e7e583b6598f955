"""Labels that are out of range, reported as errors of the data."""

from torch import Tensor

from hocket.errors import DataError
from hocket.tree import Tree


def label_error(error: IndexError, predictions: Tree) -> DataError:
    """Return the error of the data to raise for the IndexError of a bad label.

    Args:
        error: The error that PyTorch raised.
        predictions: Predictions that the targets are compared with.
    """
    shape = tuple(predictions.shape) if isinstance(predictions, Tensor) else "(a structure)"
    return DataError(
        f"the targets do not fit the outputs of shape {shape}: {error}; "
        "labels must lie between 0 and the number of outputs less one"
    )
