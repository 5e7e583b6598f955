"""Check for NaN and infinity, which most codecs cannot encode."""

import math

from torch import Tensor

from hocket.errors import NonFiniteError


def require_finite(largest: Tensor) -> float:
    """Refuse a tensor with NaN or infinity, which a codec would encode as other numbers.

    Args:
        largest: Largest absolute value of the tensor, a scalar.

    Returns:
        The largest absolute value.

    Raises:
        NonFiniteError: It is NaN or infinity.
    """
    if not math.isfinite(value := float(largest)):
        raise NonFiniteError(
            f"the tensor to be sent holds {value}, which its codec cannot encode; lower the "
            "learning rate, use a warm-up, or inspect the batch"
        )
    return value
