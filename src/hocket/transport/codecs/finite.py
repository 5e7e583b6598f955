"""What no code stands for."""

import math

from torch import Tensor

from hocket.errors import NonFiniteError


def require_finite(largest: Tensor) -> None:
    """Refuse to write NaN and infinity as numbers, which would hide them.

    Raises:
        NonFiniteError: The largest number of a tensor is none.
    """
    if not math.isfinite(value := float(largest)):
        raise NonFiniteError(
            f"what is to be sent holds {value}, for which its codec has no code; lower the "
            "learning rate, warm up, or look at the batch"
        )
