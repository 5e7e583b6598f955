"""Warning of a cut whose longest stage has too much of the work, with the reasons for it."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import nn

from hocket.errors import warn
from hocket.partition.costs.balance import balance
from hocket.partition.cut_graph import CutGraph

# Longest stage, relative to the mean.
TOLERATED = 1.5
# Reasons that are listed.
LISTED = 3


def warn_if_uneven(graph: CutGraph, work: Sequence[float], positions: Sequence[int]) -> None:
    """Warn if the longest stage is too long because places inside it are excluded.

    Args:
        graph: The network and its cut points.
        work: Work of each layer between cut points, counted or measured.
        positions: Positions in ``graph.cut_points`` at which it is cut.
    """
    # The longest stage, and the places in it at which no cut is possible.
    bounds = [0, *(position + 1 for position in positions), len(work)]
    longest, ratio = _find_longest(work, bounds)
    first, end = bounds[longest], bounds[longest + 1]
    excluded = {
        reason: inside
        for reason, names in excluded_places(graph).items()
        if (inside := [n for n in names if first <= min(graph.layers_of(n), default=0) < end])
    }
    # Otherwise packets are the reason: an even cut would cost more than it gains.
    even_bounds = [0, *balance(work, len(positions) + 1), len(work)]
    if min(ratio, _find_longest(work, even_bounds)[1]) <= TOLERATED or not excluded:
        return

    # Tell the most frequent reasons.
    frequent = sorted(excluded, key=lambda reason: len(excluded[reason]), reverse=True)
    reasons = [format_refusal(reason, excluded[reason]) for reason in frequent[:LISTED]]
    if len(excluded) > LISTED:
        reasons.append(f"and {len(excluded) - LISTED} more reasons")
    names = (*graph.layer_names, "(end)")
    _warn(longest, f"from {names[first]!r} to {names[end]!r}", ratio, reasons)


def format_refusal(reason: str, names: Sequence[str]) -> str:
    """Return a reason against cuts before some modules, the first of which is named.

    >>> format_refusal("it is shared", ["conv1", "conv2", "conv3"])
    "not before 'conv1' and 2 other modules: it is shared"
    """
    first, *others = names
    more = f" and {len(others)} other module{'s' if len(others) > 1 else ''}" if others else ""
    return f"not before {first!r}{more}: {reason}"


def warn_if_uneven_layers(
    layers: Mapping[str, nn.Module], work: Sequence[float], first_layers: Sequence[int]
) -> None:
    """Warn if one layer of an nn.Sequential has too much of the work and modules inside.

    Args:
        layers: The layers by name.
        work: Counted work of each layer.
        first_layers: First layer of each stage but the first.
    """
    bounds = [0, *first_layers, len(work)]
    longest, ratio = _find_longest(work, bounds)
    first, end = bounds[longest], bounds[longest + 1]
    largest = max(range(first, end), key=lambda layer: work[layer])
    name, layer = list(layers.items())[largest]
    inside = [f"{name}.{inner}" for inner, part in layer.named_modules() if inner]
    share = work[largest] * (len(bounds) - 1) / (sum(work) or 1)
    if ratio <= TOLERATED or share <= TOLERATED or len(inside) < 2:
        return
    reason = (
        f"not inside layer {name!r}, as an nn.Sequential is cut between its layers; name "
        f"modules inside it, such as Plan(({inside[len(inside) // 2]!r},))"
    )
    _warn(longest, f"with layer {name!r}", ratio, [reason])


def _find_longest(work: Sequence[float], bounds: Sequence[int]) -> tuple[int, float]:
    """Return the number of the longest stage, and its work relative to the mean."""
    sums = [sum(work[first:end]) for first, end in pairwise(bounds)]
    return sums.index(max(sums)), max(sums) * len(sums) / (sum(sums) or 1)


def _warn(stage: int, where: str, ratio: float, reasons: Sequence[str]) -> None:
    lines = "".join(f"\n  - {reason}" for reason in reasons)
    warn(
        f"stage {stage}, {where}, has {ratio:.1f} times the mean work of a stage, so that the "
        f"others wait for it; better places were excluded:{lines}",
    )


def excluded_places(graph: CutGraph) -> dict[str, list[str]]:
    """Return the modules before which the network cannot be cut, by the reason."""
    excluded: dict[str, list[str]] = {}
    for name, reasons in graph.refused.items():
        for reason in reasons:
            excluded.setdefault(reason, []).append(name)
    for name, reason in graph.skipped.items():
        # Others begin where an accepted place is, or have no work, such as dropout.
        weights = graph.network.get_submodule(name).parameters()
        if reason.startswith(("module ", "in evaluation")) and any(True for _ in weights):
            excluded.setdefault(reason, []).append(name)
    return excluded
