"""Layout of a stage's output: a map (C, H, W), tokens (T, D) or a vector (D,).

Heads and synthesizers are built for one of the three, which are recognised by the number of
dimensions of one sample.
"""

from collections.abc import Sequence
from typing import Literal

from hocket.errors import OptionError

Layout = Literal["vector", "tokens", "map"]


def detect_layout(shape: Sequence[int]) -> Layout:
    """Return the layout of a stage's output, given its shape without the batch.

    Raises:
        OptionError: The shape has another number of dimensions, or a dimension of size 0.

    >>> detect_layout((16, 32, 32))
    'map'
    """
    layouts: dict[int, Layout] = {1: "vector", 2: "tokens", 3: "map"}
    if len(shape) not in layouts or min(shape) < 1:
        raise OptionError(
            f"a stage's output has shape {tuple(shape)} without the batch; wanted is a map "
            "(C, H, W), tokens (T, D) or a vector (D,), none of them empty; cut elsewhere"
        )
    return layouts[len(shape)]
