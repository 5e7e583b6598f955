"""Optimal division of layers into consecutive parts, by dynamic programming."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import add
from typing import TypeVar

Cost = TypeVar("Cost", float, tuple[float, float])


def balance(
    costs: Sequence[float],
    parts: int,
    *,
    packets: Sequence[float] | None = None,
    trains: Sequence[bool] | None = None,
) -> list[int]:
    """Split layers so that the largest part is as small as possible.

    The result is exact, by dynamic programming over (parts, layers). Among equally good splits
    one is returned with the fewest parts that have nothing to train; among those into two
    parts, the one with the earliest cut; among those into more, always the same one.

    Args:
        costs: Cost of each layer.
        parts: Number of parts, as many as there are layers at most.
        packets: Cost of a cut before each layer, for each of the two parts next to it; 0 if not
            given. The cost before layer 0 is not used.
        trains: True for each layer that has weights; None if that does not matter.

    Returns:
        The first layer of parts 1, 2, ...

    >>> balance([1.0, 2.0, 3.0, 4.0], parts=2)
    [3]
    >>> balance([1.0, 2.0, 3.0, 4.0], parts=2, packets=[0.0, 0.0, 0.0, 9.0])
    [2]
    >>> balance([9.0, 1.0, 5.0, 1.0], parts=3)
    [1, 2]
    >>> balance([9.0, 1.0, 5.0, 1.0], parts=3, trains=[True, False, True, True])
    [1, 3]
    """
    count = len(costs)
    total = [0.0, *accumulate(costs)]
    cut_costs = [0.0, *(packets[1:] if packets is not None else [0.0] * (count - 1)), 0.0]

    def cost(_: int, first: int, end: int) -> float:
        return total[end] - total[first] + cut_costs[first] + cut_costs[end]

    largest, cuts = smallest_split(cost, parts, count)
    # Among splits of that cost, the fewest parts without weights.
    bounds = pairwise((0, *cuts, count))
    if trains is None or all(any(trains[first:end]) for first, end in bounds):
        return cuts

    def untrained(part: int, first: int, end: int) -> float:
        if cost(part, first, end) > largest:
            return float("inf")
        return float(not any(trains[first:end]))

    return smallest_split(untrained, parts, count, add)[1]


def smallest_split(
    cost: Callable[[int, int, int], Cost],
    parts: int,
    count: int,
    combine: Callable[[Cost, Cost], Cost] = max,
) -> tuple[Cost, list[int]]:
    """Find the split whose parts together cost least.

    Args:
        cost: Cost of a part, at least 0, from its number, its first layer and the layer after
            its last one.
        parts: Number of parts, at most `count`.
        count: Number of layers.
        combine: Cost of two things together, such as the larger one or the sum.

    Returns:
        The cost of all parts, and the first layer of parts 1, 2, ...
    """
    # The best split of the first n layers, by n.
    best: dict[int, tuple[Cost, list[int]]]
    best = {n: (cost(0, 0, n), []) for n in range(1, count + 1)}
    for part in range(1, parts):
        longer: dict[int, tuple[Cost, list[int]]] = {}
        for n in range(part + 1, count + 1):
            costs = {cut: combine(best[cut][0], cost(part, cut, n)) for cut in range(part, n)}
            earliest: int = min(costs, key=costs.__getitem__)
            longer[n] = costs[earliest], [*best[earliest][1], earliest]
        best = longer
    return best[count]
