"""Optimal division of layers into consecutive parts, by dynamic programming."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import add

from hocket.errors import CutError

PartCost = Callable[[int, int, int], float]
"""Function of a part's number, its first layer and the layer after its last one."""


def balance(
    costs: Sequence[float],
    parts: int,
    *,
    packets: Sequence[float] | None = None,
    overlapping: bool = False,
    usage: PartCost | None = None,
    capacity: float = float("inf"),
    unit: str = "",
    trains: Sequence[bool] | None = None,
) -> list[int]:
    """Split layers so that the largest part is as small as possible.

    The result is exact, by dynamic programming over (parts, layers). Among equally good splits
    one is returned with the fewest parts that have nothing to train; among those into two
    parts, the one with the earliest cut; among those into more, always the same one.

    Args:
        costs: Cost of each layer.
        parts: Number of parts.
        packets: Cost of a cut before each layer, for each of the two parts next to it; 0 if not
            given. The cost before layer 0 is not used.
        overlapping: A part costs as much as the larger of its layers and each of its packets,
            instead of their sum.
        usage: Amount of a limited resource, such as memory, that a part needs.
        capacity: Largest amount of that resource that a part may need.
        unit: Unit of the resource, for the error.
        trains: True for each layer that has weights; None if that does not matter.

    Returns:
        The first layer of parts 1, 2, ...

    Raises:
        CutError: There are fewer layers than parts, or no split stays within the capacity.

    >>> balance([1.0, 2.0, 3.0, 4.0], parts=2)
    [3]
    >>> balance([1.0, 2.0, 3.0, 4.0], parts=2, packets=[0.0, 0.0, 0.0, 9.0])
    [2]
    >>> balance([1.0, 2.0, 3.0, 4.0], parts=2, packets=[0.0, 0.0, 0.0, 6.0], overlapping=True)
    [3]
    >>> balance([9.0, 1.0, 5.0, 1.0], parts=3)
    [1, 2]
    >>> balance([9.0, 1.0, 5.0, 1.0], parts=3, trains=[True, False, True, True])
    [1, 3]
    """
    count = len(costs)
    if not 1 <= parts <= count:
        raise CutError(f"cannot split {count} layers into {parts} parts; ask for 1 to {count}")
    total = [0.0, *accumulate(costs)]
    cut_costs = [0.0, *(packets[1:] if packets is not None else [0.0] * (count - 1)), 0.0]

    def cost(part: int, first: int, end: int) -> float:
        if usage is not None and usage(part, first, end) > capacity:
            return float("inf")
        layers = total[end] - total[first]
        if overlapping:
            return max(layers, cut_costs[first], cut_costs[end])
        return layers + cut_costs[first] + cut_costs[end]

    largest, cuts = _minimize(cost, parts, count, max)
    if largest == float("inf"):
        assert usage is not None, "costs are finite"
        least, _ = _minimize(usage, parts, count, max)
        raise CutError(
            f"no cut into {parts} stages fits into {capacity:.4g}{unit}: the smallest limit "
            f"that one fits into is {_round_up(least)}{unit}; allow that, or use more stages"
        )
    # Among splits of that cost, the fewest parts without weights.
    bounds = pairwise((0, *cuts, count))
    if trains is None or all(any(trains[first:end]) for first, end in bounds):
        return cuts

    def untrained(part: int, first: int, end: int) -> float:
        if cost(part, first, end) > largest:
            return float("inf")
        return float(not any(trains[first:end]))

    return _minimize(untrained, parts, count, add)[1]


def _minimize(
    cost: PartCost, parts: int, count: int, combine: Callable[[float, float], float]
) -> tuple[float, list[int]]:
    """Find the split whose parts together cost least.

    Args:
        cost: Cost of a part, at least 0.
        parts: Number of parts.
        count: Number of layers.
        combine: Cost of two things together, such as the larger one or the sum.

    Returns:
        The cost of all parts, and the first layer of parts 1, 2, ...
    """
    # best[n] and cuts[n] are for the first n layers.
    best = [float("inf"), *(cost(0, 0, n) for n in range(1, count + 1))]
    cuts: list[list[int]] = [[] for _ in range(count + 1)]
    for part in range(1, parts):
        next_best, next_cuts = [float("inf")] * (count + 1), [[0]] * (count + 1)
        for n in range(part + 1, count + 1):
            for cut in range(n - 1, part - 1, -1):
                if best[cut] <= next_best[n]:
                    together = combine(best[cut], cost(part, cut, n))
                    if together <= next_best[n]:
                        next_best[n], next_cuts[n] = together, [*cuts[cut], cut]
        best, cuts = next_best, next_cuts
    return best[count], cuts[count]


def _round_up(value: float) -> str:
    """Format a number with four digits, rounded up.

    >>> _round_up(1.00001)
    '1.001'
    """
    digits = 3 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{math.ceil(value * 10**digits) / 10**digits:.{max(digits, 0)}f}"
