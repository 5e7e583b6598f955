"""Cuts of any network into stages: between the layers of a sequence, or inside its forward."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Literal, get_args

from torch import nn

from hocket.errors import CutError, OptionError, format_problems, raise_problems, warn
from hocket.modes import training_mode
from hocket.options.ranges import wrong_choice
from hocket.partition.costs.balance import balance, smallest_split
from hocket.partition.costs.device import Device, format_memory
from hocket.partition.costs.flops import (
    OPERATIONS_PER_ELEMENT_SENT,
    count_flops,
    count_flops_between,
)
from hocket.partition.costs.link import ONE_MACHINE, Link
from hocket.partition.costs.profile import LayerCost, profile
from hocket.partition.costs.unevenness import (
    excluded_places,
    format_refusal,
    warn_if_uneven,
    warn_if_uneven_layers,
)
from hocket.partition.cut_graph import CutGraph
from hocket.partition.cut_points import find_cut_points
from hocket.partition.inputs import as_inputs
from hocket.partition.parts.partial_module import build_partial_modules
from hocket.partition.plan import Plan
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
    """Cut a network into stages that, in sequence, compute the same as the network.

    An nn.Sequential is cut between its layers, into nn.Sequentials of them. The forward of any
    other network is recorded on the sample; its stages are parts of this forward. They can
    begin at any module that is called once, also inside a block: all values that are used later
    are sent along. Modules keep their names, hooks and modes.

    The stages are compared with the network on the sample, in training mode and in
    evaluation: outputs, gradients and statistics are equal bit by bit, or the cut is refused.
    If the longest stage has more than 1.5 times the mean work, and no place for an even cut is
    left, a warning gives the reasons.

    Args:
        network: The network. Inputs in a dict are passed to it as keywords, those in a tuple or
            list in order; an nn.Sequential gets them whole.
        stages: Number of stages, which are balanced; or the cuts, such as `Plan.read(file)`.
        sample: A batch of its inputs. Two inputs are enough to count operations; measured times
            need a whole batch. Batches in training may have any size.
        by: Cost to balance: ``operations`` are counted, so that equal runs have equal cuts;
            ``time`` is measured, and then any network may be cut inside its blocks.
        link: For ``time``: the link that packets are sent over, while the stages compute, as
            with all methods that have a delay or a local loss.
        memory_limit_mib: For ``time``: memory of a stage, in MiB. It is computed as three times
            the weights (for gradients and a momentum) plus the tensors that one batch keeps for
            the backward.

    Raises:
        CutError: The network cannot be cut like this; with all reasons.
        DataError: There is no tensor in the sample, or one that is not dense.
        OptionError: The network is no module, an option is not valid, or a link or a limit is
            given where nothing is measured.

    >>> import torch
    >>> network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> [len(stage) for stage in cut(network, stages=2, sample=torch.ones(2, 4))]
    [1, 2]
    """
    # Check the options.
    if not isinstance(network, nn.Module):
        raise OptionError(f"the network is {network!r}; give a module")
    raise_problems(OptionError, "cannot cut like this", wrong_choice("by", by, get_args(By)))
    device = Device(1.0, memory_limit_mib, link)
    if isinstance(stages, bool) or not isinstance(stages, int | Plan):
        raise OptionError(f"stages is {stages!r}; use a whole number or a Plan")
    sample = as_inputs(sample, "the sample")
    timed = isinstance(stages, int) and by == "time"
    if device != Device() and not timed:
        raise OptionError(
            "a link or a limit of memory needs a number of stages and by='time', with which "
            "time and memory are measured; give both, or leave it out"
        )

    # Measure the layers, and choose the fastest cut.
    if isinstance(stages, int) and timed:
        graph = find_cut_points(network, sample)
        require_enough_layers(stages, graph)
        costs = list(measure_layers(graph).values())
        positions = fastest_cut(costs, [device] * stages)
        warn_if_uneven(graph, [cost.total_s for cost in costs], positions)
        stages = _build_plan(graph, positions)

    # Cut, and compare with the whole network.
    plan, modules = divide(network, stages, sample)
    if cuts_between_layers(network, plan):  # all others have been verified
        verify_stages(network, modules, sample)
    return modules


def measure_layers(graph: CutGraph) -> dict[str, LayerCost]:
    """Measure each layer between cut points in training, by the name of its first module."""
    modules = build_partial_modules(graph, range(len(graph.cut_points)))
    with training_mode(graph.network):
        return profile(dict(zip(graph.layer_names, modules, strict=True)), graph.sample)


def fastest_cut(
    costs: Sequence[LayerCost],
    devices: Sequence[Device],
    *,
    overlapping: bool = True,
    memory_mib: Callable[[int, int, int], float] | None = None,
) -> list[int]:
    """Find the cut whose slowest stage or packet is as fast as possible.

    An activation and a gradient of the same size cross each cut, in opposite directions. Their
    latency does not count, as it is the same wherever the cut is.

    Args:
        costs: Measured cost of each layer.
        devices: Device of each stage.
        overlapping: Stages compute while packets are on their way. Otherwise both stages next
            to a cut wait for both packets.
        memory_mib: Memory of a stage in MiB, from its number, its first layer and the layer
            after its last one; if not given, three times its weights and one batch.

    Returns:
        Positions of the chosen cut points.

    Raises:
        CutError: No cut fits into the memory; with what the one that comes closest needs.
    """
    # Sums over the first layers, and the cost of a packet at each cut.
    count = len(costs)
    total_s = [0.0, *accumulate(cost.total_s for cost in costs)]
    held = [0, *accumulate(3 * cost.weight_bytes + cost.kept_bytes for cost in costs)]

    def one_batch_mib(_: int, first: int, end: int) -> float:
        return (held[end] - held[first]) / 2**20

    needed_mib = memory_mib or one_batch_mib

    def packet_s(edge: int, layer: int) -> float:
        if not 0 < layer < count:
            return 0.0
        one_way_s = costs[layer - 1].output_bytes / devices[edge].link.bytes_per_s
        return one_way_s if overlapping else 2 * one_way_s

    def cost(stage: int, first: int, end: int) -> tuple[float, float]:
        """Return the share of its memory that a stage needs, 0 if it fits, and its time."""
        used = needed_mib(stage, first, end) / devices[stage].memory_limit_mib
        compute_s = (total_s[end] - total_s[first]) / devices[stage].speed
        before_s, after_s = packet_s(stage - 1, first), packet_s(stage, end)
        joined_s = max(compute_s, before_s, after_s)
        return used * (used > 1), joined_s if overlapping else compute_s + before_s + after_s

    # The best split, unless even that is too large.
    (excess, _), first_layers = smallest_split(cost, len(devices), count)
    if excess:
        bounds = enumerate(pairwise((0, *first_layers, count)))
        told = format_memory([needed_mib(k, *ends) for k, ends in bounds], devices)
        raise CutError(
            f"no cut into {len(devices)} stages fits into the memory; in the one that comes "
            f"closest {told}; allow that, or use more stages or smaller batches"
        )
    return [first - 1 for first in first_layers]


def divide(
    network: nn.Module, stages: int | Plan, sample: Tree
) -> tuple[Plan, list[nn.Module]]:
    """Cut a network; only stages of an nn.Sequential are not compared with it.

    Args:
        network: The network.
        stages: Number of stages, which are balanced by counted operations; or the cuts.
        sample: A batch of its inputs.

    Returns:
        The cuts, and the stages.

    Raises:
        CutError: The network cannot be cut like this; with all reasons.
    """
    if isinstance(stages, Plan):
        stages.require_for(network)

    # Layers of an nn.Sequential become stages as they are.
    counted = isinstance(stages, int)
    if isinstance(stages, int) and is_sequential(network):
        stages = balanced_plan(network, stages, sample)
    if isinstance(stages, Plan) and cuts_between_layers(network, stages):
        plan, modules = stages, build_stages(network, stages)
    else:  # any other network is cut inside its forward
        graph = find_cut_points(network, sample)
        if isinstance(stages, int):
            positions = balanced_cut_points(graph, stages)
        else:
            positions = _find_positions(graph, stages)
        plan = _build_plan(graph, positions)
        modules = list[nn.Module](build_partial_modules(graph, positions))
        require_separate(network, modules)
        verify_stages(network, modules, sample)
    if counted:
        _warn_of_untrained(network, plan, modules)
    return plan, modules


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _warn_of_untrained(network: nn.Module, plan: Plan, modules: Sequence[nn.Module]) -> None:
    """Warn of stages with nothing to train, unless weights are tied: they may use others'."""
    starts = ("the input", *map(repr, plan.cuts))
    untrained = [
        f"stage {stage} (from {start} on)"
        for stage, (start, module) in enumerate(zip(starts, modules, strict=True))
        if not _has_weights(module)
    ]
    weights = list(network.named_parameters(remove_duplicate=False))
    if untrained and len(weights) == len(list(network.parameters())):
        warn(
            f"without weights to train: {', '.join(untrained)}; ask for fewer stages, or name "
            "the cuts"
        )


def _build_plan(graph: CutGraph, positions: Sequence[int]) -> Plan:
    """Return the plan that cuts at these positions in ``graph.cut_points``."""
    return Plan(tuple(graph.cut_points[position].name for position in positions))


def balanced_plan(network: nn.Module, stages: int, sample: Tree) -> Plan:
    """Balance the counted operations of the stages of a sequential network.

    Operations are counted, not timed, so that equal runs have equal cuts.

    Args:
        network: An nn.Sequential.
        stages: Number of stages K.
        sample: A batch of inputs, of which one input is enough.

    Raises:
        CutError: There are fewer layers than stages, the number of stages is below 1, or the
            network does not take the sample.
    """
    layers = layers_in_order(network)
    require_enough(stages, len(layers))
    if stages == 1:
        return Plan(())
    counts = count_flops(network, sample)
    first_layers = balance(counts, stages, trains=list(map(_has_weights, layers.values())))
    warn_if_uneven_layers(layers, counts, first_layers)
    return Plan(tuple(list(layers)[first] for first in first_layers))


def balanced_cut_points(graph: CutGraph, stages: int) -> list[int]:
    """Balance counted operations and sent elements; return positions of cut points.

    Raises:
        CutError: There are fewer layers than stages, or the number of stages is below 1.
    """
    require_enough_layers(stages, graph)
    packets = [
        float(OPERATIONS_PER_ELEMENT_SENT * point.elements) for point in graph.cut_points
    ]
    counts = count_flops_between(graph)
    find = partial(balance, counts, stages, packets=[0.0, *packets])
    positions = [first - 1 for first in find()]
    if not all(map(_has_weights, build_partial_modules(graph, positions))):
        layers = build_partial_modules(graph, range(len(graph.cut_points)))
        positions = [first - 1 for first in find(trains=list(map(_has_weights, layers)))]
    warn_if_uneven(graph, counts, positions)
    return positions


def require_enough_layers(stages: int, graph: CutGraph) -> None:
    """Check that there are at least as many layers as stages.

    Raises:
        CutError: There are fewer, with all reasons; or the number of stages is below 1.
    """
    reasons = [format_refusal(*each) for each in excluded_places(graph).items()]
    require_enough(stages, len(graph.layer_names), reasons)


def require_enough(stages: int, layers: int, reasons: Sequence[str] = ()) -> None:
    """Refuse more stages than layers.

    Args:
        stages: Number of stages.
        layers: Layers at which one can begin.
        reasons: Why there are no more.

    Raises:
        CutError: There are fewer layers, or the number of stages is below 1.
    """
    if not 1 <= stages <= layers:
        most = f"1 to {layers} stages" if layers > 1 else "1 stage"
        problem = f"it has {layers} layers at which a stage can begin; ask for {most}"
        title = f"cannot cut this network into {stages} stages"
        message = (
            format_problems(title, [problem, *reasons]) if reasons else f"{title}: {problem}"
        )
        raise CutError(message)


def _find_positions(graph: CutGraph, plan: Plan) -> list[int]:
    """Return the positions of a plan's cuts in ``graph.cut_points``.

    Raises:
        CutError: The plan is for another network, or a cut is impossible or out of order.
    """
    names = [point.name for point in graph.cut_points]
    modules = dict(graph.network.named_modules(remove_duplicate=False))
    foreign = [
        f"it cuts before layer {name!r}, and there is no such module"
        for name in plan.cuts
        if name not in modules
    ]
    raise_problems(CutError, "the plan is for another network", foreign)

    # Names of the plan before which this network cannot be cut, and names out of order. A
    # module may have several, of which cut points have the first.
    first_names = {module: name for name, module in graph.network.named_modules()}
    cuts = [first_names[modules[name]] for name in plan.cuts]
    problems = [
        f"not before {name!r}: {reason}"
        for name in cuts
        if name not in names
        for reason in graph.refused.get(
            name, (graph.skipped.get(name, "it is not called in the forward"),)
        )
    ]
    positions = [names.index(name) for name in cuts if name in names]
    problems += [
        f"{names[a]!r} comes before {names[b]!r} in the plan, but not in the forward"
        for a, b in pairwise(positions)
        if a >= b
    ]
    raise_problems(CutError, f"cannot cut this network into {plan.stages} stages", problems)
    return positions
