"""The best way to divide layers, in their order, among stages."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from hocket.errors import CutError

Room = Callable[[int, int, int], float]
"""What a stage needs, from its number, its first layer and the first layer behind it."""


def balance(
    costs: Sequence[float],
    parts: int,
    *,
    packets: Sequence[float] | None = None,
    room: Room | None = None,
    limit: float = float("inf"),
    unit: str = "",
) -> list[int]:
    """The first layer of parts 1, 2, ... of the split with the smallest largest part.

    Exact, by dynamic programming over (parts, layers); among equals, the earliest cuts.

    Args:
        costs: Of each layer.
        parts: In how many parts to split.
        packets: What it costs each of the parts beside it to cut before a layer; nothing if
            not given. That of layer 0 does not count.
        room: What a part needs of what is limited, such as memory.
        limit: How much of that each part may need.
        unit: Of the limit, for the error.

    Raises:
        CutError: There are fewer layers than parts, or no split stays below the limit.

    >>> split([1.0, 2.0, 3.0, 4.0], parts=2)
    [3]
    >>> split([1.0, 2.0, 3.0, 4.0], parts=2, packets=[0.0, 0.0, 0.0, 9.0])
    [2]
    """
    count = len(costs)
    if not 1 <= parts <= count:
        raise CutError(f"cannot split {count} layers into {parts} parts; ask for 1 to {count}")
    total = [0.0, *accumulate(costs)]
    borders = [0.0, *(packets[1:] if packets is not None else [0.0] * (count - 1)), 0.0]

    def cost(part: int, first: int, end: int) -> float:
        if room is not None and room(part, first, end) > limit:
            return float("inf")
        return total[end] - total[first] + borders[first] + borders[end]

    largest, cuts = _smallest(cost, parts, count)
    if largest == float("inf"):
        assert room is not None, "costs are finite"
        least, _ = _smallest(room, parts, count)
        raise CutError(
            f"no cut into {parts} stages fits into {limit:.4g}{unit}: the smallest limit that "
            f"one fits into is {_rounded_up(least)}{unit}; allow that, or use more stages"
        )
    return cuts


def _smallest(cost: Room, parts: int, count: int) -> tuple[float, list[int]]:
    """The smallest largest cost of a split, and its cuts."""
    best = [
        float("inf"),
        *(cost(0, 0, n) for n in range(1, count + 1)),
    ]  # of the first n layers
    cuts: list[list[int]] = [[] for _ in range(count + 1)]
    for part in range(1, parts):
        longer, longer_cuts = [float("inf")] * (count + 1), [[0]] * (count + 1)
        for n in range(part + 1, count + 1):
            for cut in range(n - 1, part - 1, -1):
                if best[cut] <= longer[n]:
                    largest = max(best[cut], cost(part, cut, n))
                    if largest <= longer[n]:
                        longer[n], longer_cuts[n] = largest, [*cuts[cut], cut]
        best, cuts = longer, longer_cuts
    return best[count], cuts[count]


def _rounded_up(value: float) -> str:
    """A number as text that is not smaller than it.

    >>> _rounded_up(1.00001)
    '1.001'
    """
    digits = 3 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{math.ceil(value * 10**digits) / 10**digits:.{max(digits, 0)}f}"
