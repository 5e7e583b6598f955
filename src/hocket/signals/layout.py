"""What a stage's output looks like to the networks that stand on it.

Heads and synthesizers are built for three layouts, told apart by the number of dimensions of
one sample: a map (C, H, W), tokens (T, D), a vector (D,).
"""

from collections.abc import Sequence
from typing import Literal

from hocket.errors import OptionError

Layout = Literal["vector", "tokens", "map"]


def detect_layout(shape: Sequence[int]) -> Layout:
    """Layout of a stage's output, from its shape without the batch.

    Raises:
        OptionError: The shape is none of the three, or is empty in a dimension.

    >>> layout_of((16, 32, 32))
    'map'
    """
    layouts: dict[int, Layout] = {1: "vector", 2: "tokens", 3: "map"}
    if len(shape) not in layouts or min(shape) < 1:
        raise OptionError(
            f"a stage's output has shape {tuple(shape)} without the batch; wanted is a map "
            "(C, H, W), tokens (T, D) or a vector (D,), none of them empty; cut elsewhere"
        )
    return layouts[len(shape)]
