"""A network of any kind in stages: the layers of a sequence, or parts of its own forward."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, get_args

from torch import nn

from hocket.errors import CutError, OptionError, listed
from hocket.partition.balance import balance
from hocket.partition.cut_points import CutGraph, find_cut_points
from hocket.partition.flops import OPERATIONS_PER_NUMBER_SENT, count_flops, count_flops_between
from hocket.partition.link import ONE_MACHINE, Link
from hocket.partition.partial_module import build_partial_modules
from hocket.partition.plan import Plan
from hocket.partition.profile import LayerCost, profile
from hocket.partition.sequential import (
    build_stages,
    cuts_between_layers,
    is_sequential,
    layers_in_order,
    require_separate,
)
from hocket.partition.verify import verify_stages
from hocket.tree import Tree

By = Literal["operations", "time"]


def cut(
    network: nn.Module,
    *,
    stages: int | Plan,
    sample: Tree,
    by: By = "operations",
    link: Link = ONE_MACHINE,
    memory_limit_mib: float = float("inf"),
) -> list[nn.Module]:
    """The network as stages that, one behind the other, compute what it computes.

    An nn.Sequential is cut between its layers, into nn.Sequentials of them. Any other network
    is run on the sample and watched; its stages are parts of its own forward, and may begin
    at any module that is called once, inside a block too: whatever is needed later crosses with
    it. The modules stay those of the network, under their names, with their hooks, and in both
    modes.

    The stages are compared with the network on the sample, in the mode that it is in and in
    evaluation: outputs, gradients and statistics are equal bit by bit, or the cut is refused.

    Args:
        network: The network. Inputs that are a dict are passed to it by keywords, a tuple or
            a list in turn.
        stages: How many, as equal as they can be; or where to cut, such as `Plan.read(file)`.
        sample: A batch of its inputs; two of them are enough to count operations, measured
            times want a whole one. Other batches may be of any size.
        by: What is to be equal: counted ``operations``, which equal runs cut equally, or
            measured ``time``, for which any network is cut inside blocks where that is better.
        link: For times: what packets go over.
        memory_limit_mib: For times: what a stage may hold, in MiB. Counted are its weights three times
            (with gradients and a momentum) and what one batch keeps for the backward.

    Raises:
        CutError: The network cannot be cut so; with every reason.
        OptionError: There is no such ``by``, or a limit where nothing is measured.

    >>> import torch
    >>> network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> [len(stage) for stage in cut(network, stages=2, sample=torch.ones(2, 4))]
    [1, 2]
    """
    if by not in get_args(By):
        raise OptionError(f"by is {by!r}; use {' or '.join(map(repr, get_args(By)))}")
    timed = isinstance(stages, int) and by == "time"
    if memory_limit_mib != float("inf") and not timed:
        raise OptionError(
            "a limit of memory needs a number of stages and by='time', which measures memory"
        )
    if isinstance(stages, int) and timed:
        seen = find_cut_points(network, sample)
        require_enough_layers(stages, seen)
        places = fastest_cut(
            list(measure_layers(seen).values()), stages, link, memory_limit_mib
        )
        stages = Plan(tuple(seen.cut_points[place].name for place in places))
    _, made = divide(network, stages, sample)
    verify_stages(network, made, sample)
    return made


def measure_layers(seen: CutGraph) -> dict[str, LayerCost]:
    """What each layer of an outline takes, by the name of the module that it begins with."""
    layers = dict(
        zip(seen.names, build_partial_modules(seen, range(len(seen.cut_points))), strict=True)
    )
    return profile(layers, seen.sample)


def fastest_cut(
    costs: Sequence[LayerCost],
    stages: int,
    link: Link = ONE_MACHINE,
    memory_limit_mib: float = float("inf"),
) -> list[int]:
    """The borders with the shortest longest stage, its packets included.

    Over each border go an activation and a gradient of the same size; both stages wait for
    both.

    Raises:
        CutError: No cut fits into the memory, with the smallest that one would fit into.
    """

    def held_mib(_: int, first: int, end: int) -> float:
        mine = costs[first:end]
        return sum(3 * cost.weight_bytes + cost.kept_bytes for cost in mine) / 2**20

    packets = [0.0, *(2 * link.seconds(cost.output_bytes) for cost in costs[:-1])]
    times_s = [cost.total_s for cost in costs]
    cuts = balance(
        times_s, stages, packets=packets, room=held_mib, limit=memory_limit_mib, unit=" MiB"
    )
    return [first - 1 for first in cuts]


def divide(
    network: nn.Module, stages: int | Plan, sample: Tree
) -> tuple[Plan, list[nn.Module]]:
    """Where the network is cut, and its stages; those of a sequence are not compared with it.

    Raises:
        CutError: The network cannot be cut so; with every reason.
    """
    if isinstance(stages, Plan):
        stages.require_for(network)
    if isinstance(stages, int) and is_sequential(network):
        stages = balanced_plan(network, stages, sample)
    if isinstance(stages, Plan) and cuts_between_layers(network, stages):
        return stages, build_stages(network, stages)
    seen = find_cut_points(network, sample)
    borders = (
        balanced_cut_points(seen, stages) if isinstance(stages, int) else _borders(seen, stages)
    )
    made: list[nn.Module] = list(build_partial_modules(seen, borders))
    require_separate(network, made)
    verify_stages(network, made, sample)
    return Plan(tuple(seen.cut_points[place].name for place in borders)), made


def balanced_plan(network: nn.Module, stages: int, sample: Tree) -> Plan:
    """The cuts with the smallest largest stage, by counted operations of a forward.

    Counted, not timed, so that equal runs cut equally.

    Args:
        network: A chain of layers.
        stages: K.
        sample: A batch of inputs, of which one sample is enough.

    Raises:
        CutError: There are fewer layers than stages, less than one stage is asked for, or the
            network does not take the sample.
    """
    names = list(layers_in_order(network))
    _require_enough(stages, len(names), [])
    if stages == 1:
        return Plan(())
    return Plan(tuple(names[i] for i in balance(count_flops(network, sample), stages)))


def balanced_cut_points(seen: CutGraph, stages: int) -> list[int]:
    """The borders with the smallest largest stage, by counted operations and numbers sent."""
    require_enough_layers(stages, seen)
    sent = [float(OPERATIONS_PER_NUMBER_SENT * border.numbers) for border in seen.cut_points]
    layers = count_flops_between(seen)
    return [first - 1 for first in balance(layers, stages, packets=[0.0, *sent])]


def require_enough_layers(stages: int, seen: CutGraph) -> None:
    """Refuse more stages than layers.

    Raises:
        CutError: With every reason why there are not more layers.
    """
    _require_enough(stages, len(seen.names), list(_reasons(seen)))


def _require_enough(stages: int, layers: int, reasons: Sequence[str]) -> None:
    if not 1 <= stages <= layers:
        many = f"it has {layers} layers; ask for 1 to {layers} stages"
        title = f"cannot cut this network into {stages} stages"
        raise CutError(listed(title, [many, *reasons]) if reasons else f"{title}: {many}")


def _borders(seen: CutGraph, plan: Plan) -> list[int]:
    """The borders of a plan."""
    names = [border.name for border in seen.cut_points]
    modules = dict(seen.network.named_modules())
    foreign = [
        f"it cuts before layer {name!r}, and there is no such module"
        for name in plan.cuts
        if name not in modules
    ]
    if foreign:
        raise CutError(listed("the plan is for another network", foreign))
    problems = [
        f"not before {name!r}: {reason}"
        for name in plan.cuts
        if name not in names
        for reason in seen.refused.get(
            name, (seen.skipped.get(name, "it is not called in the forward"),)
        )
    ]
    places = [names.index(name) for name in plan.cuts if name in names]
    problems += [
        f"{names[a]!r} comes before {names[b]!r} in the plan, and not in the forward"
        for a, b in pairwise(places)
        if a >= b
    ]
    if problems:
        raise CutError(listed(f"cannot cut this network into {plan.stages} stages", problems))
    return places


def _reasons(seen: CutGraph) -> Iterator[str]:
    """Why there are no more borders; the modules with one reason in one line."""
    by_reason: dict[str, list[str]] = {}
    for name, reasons in seen.refused.items():
        for reason in reasons:
            by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        more = f" and {len(names) - 1} other modules" if len(names) > 1 else ""
        yield f"not before {names[0]!r}{more}: {reason}"
