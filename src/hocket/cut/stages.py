"""A network of any kind in stages: the layers of a sequence, or parts of its own forward."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import nn

from hocket.cut.chain import chain, is_chain, require_separate, stages_of
from hocket.cut.check import require_same
from hocket.cut.cost import OPERATIONS_PER_NUMBER_SENT, operations, operations_between
from hocket.cut.outline import Outline, outline
from hocket.cut.pieces import pieces
from hocket.cut.plan import Plan
from hocket.cut.solve import split
from hocket.errors import CutError, listed
from hocket.tree import Tree


def cut(network: nn.Module, *, stages: int | Plan, sample: Tree) -> list[nn.Module]:
    """The network as stages that, one behind the other, compute what it computes.

    An nn.Sequential is cut between its layers. Any other network is run on the sample and
    watched; its stages are then parts of its own forward, and may begin at any module that is
    called once, inside a block too: whatever is needed later crosses with it. The modules stay
    those of the network, under their names, with their hooks, and in both modes.

    The stages are compared with the network on the sample, in the mode that it is in and in
    evaluation: outputs, gradients and statistics are equal bit by bit, or the cut is refused.

    Args:
        network: The network. Inputs that are a dict are passed to it by keywords, a tuple or
            a list in turn.
        stages: How many, with the counted operations of each as equal as they can be; or where
            to cut.
        sample: A batch of its inputs; two of them are enough. Other batches may be of any size.

    Raises:
        CutError: The network cannot be cut so; with every reason.

    >>> stages = cut(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), stages=2,
    ...              sample=__import__("torch").ones(2, 4))
    >>> [len(stage) for stage in stages]
    [1, 2]
    """
    _, made = divide(network, stages, sample)
    require_same(network, made, sample)
    return made


def divide(
    network: nn.Module, stages: int | Plan, sample: Tree
) -> tuple[Plan, list[nn.Module]]:
    """Where the network is cut, and its stages; those of a sequence are not compared with it.

    Raises:
        CutError: The network cannot be cut so; with every reason.
    """
    if is_chain(network):
        layers = chain(network)
        if isinstance(stages, int):
            stages = balanced(layers, stages, sample)
        if all(name in layers for name in stages.cuts):
            return stages, stages_of(network, stages)
    seen = outline(network, sample)
    borders = (
        balanced_borders(seen, stages) if isinstance(stages, int) else _borders(seen, stages)
    )
    made: list[nn.Module] = list(pieces(seen, borders))
    require_separate(network, made)
    require_same(network, made, sample)
    return Plan(tuple(seen.borders[place].name for place in borders)), made


def balanced(layers: dict[str, nn.Module], stages: int, sample: Tree) -> Plan:
    """The cuts with the smallest largest stage, by counted operations of a forward.

    Counted, not timed, so that equal runs cut equally.

    Args:
        layers: The chain.
        stages: K.
        sample: A batch of inputs, of which one sample is enough.

    Raises:
        CutError: There are fewer layers than stages, or less than one stage is asked for.
    """
    names = list(layers)
    _require_enough(stages, len(names), [])
    if stages == 1:
        return Plan(())
    return Plan(tuple(names[i] for i in split(operations(layers, sample), stages)))


def balanced_borders(seen: Outline, stages: int) -> list[int]:
    """The borders with the smallest largest stage, by counted operations and numbers sent."""
    _require_enough(stages, len(seen.names), list(_reasons(seen)))
    sent = [float(OPERATIONS_PER_NUMBER_SENT * border.numbers) for border in seen.borders]
    layers = operations_between(seen)
    return [first - 1 for first in split(layers, stages, packets=[0.0, *sent])]


def _require_enough(stages: int, layers: int, reasons: Sequence[str]) -> None:
    if not 1 <= stages <= layers:
        many = f"it has {layers} layers; ask for 1 to {layers} stages"
        title = f"cannot cut this network into {stages} stages"
        raise CutError(listed(title, [many, *reasons]) if reasons else f"{title}: {many}")


def _borders(seen: Outline, plan: Plan) -> list[int]:
    """The borders of a plan."""
    names = [border.name for border in seen.borders]
    modules = dict(seen.network.named_modules())
    foreign = [
        f"it cuts before {name!r}, and there is no such module"
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


def _reasons(seen: Outline) -> Iterator[str]:
    """Why there are no more borders; the modules with one reason in one line."""
    by_reason: dict[str, list[str]] = {}
    for name, reasons in seen.refused.items():
        for reason in reasons:
            by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        more = f" and {len(names) - 1} other modules" if len(names) > 1 else ""
        yield f"not before {names[0]!r}{more}: {reason}"
