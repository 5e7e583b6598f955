"""Stages of an `nn.Sequential`: consecutive layers of it."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from hocket.errors import CutError, raise_problems
from hocket.partition.plan import Plan


def layers_in_order(network: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a sequential network by name, in order.

    A plain nn.Sequential inside it is flattened; an instance of a subclass is one layer.

    Raises:
        CutError: The network is not an nn.Sequential, or has no layers.

    >>> inner = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
    >>> list(layers_in_order(nn.Sequential(nn.Linear(2, 2), inner)))
    ['0', '1.0', '1.1']
    """
    if not is_sequential(network):
        raise CutError(
            f"cannot cut a {type(network).__name__}: only an nn.Sequential shows which layer "
            "follows which; pass one, or pass the stages as a list of modules"
        )
    layers: dict[str, nn.Module] = {}
    # Not named_children, which omits the second use of a layer that is used twice.
    for name, child in network._modules.items():
        assert child is not None, "nn.Sequential holds modules only"
        if type(child) is nn.Sequential and is_sequential(child) and len(child) > 0:
            inner = layers_in_order(child)
            layers |= {f"{name}.{inner_name}": layer for inner_name, layer in inner.items()}
        else:
            layers[name] = child
    if not layers:
        raise CutError("cannot cut a network without layers")
    return layers


def is_sequential(module: nn.Module) -> bool:
    """Return True if the module only calls its children in order, without hooks."""
    return has_plain_forward(module) and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def has_plain_forward(module: nn.Module) -> bool:
    """Return True for an nn.Sequential with PyTorch's forward, which takes one argument."""
    plain = isinstance(module, nn.Sequential) and "forward" not in vars(module)
    return plain and type(module).forward is nn.Sequential.forward


def cuts_between_layers(network: nn.Module, plan: Plan) -> bool:
    """Return True if a plan cuts a sequential network between its layers only.

    A plan that divides layers with a common parameter does not: stages that are parts of the
    forward can send it along.
    """
    if not is_sequential(network):
        return False
    layers, modules = layers_in_order(network), dict(network.named_modules())
    if any(name in modules and name not in layers for name in plan.cuts):
        return False
    # A layer that is used twice has no name for its second use.
    trained = [layer for layer in layers.values() if any(True for _ in layer.parameters())]
    if len(set(trained)) < len(trained):
        return True
    # Different layers on two sides of a cut may have a parameter in common.
    stage, owners = 0, dict[nn.Parameter, int]()
    for name, layer in layers.items():
        stage += name in plan.cuts
        if any(owners.setdefault(p, stage) != stage for p in layer.parameters()):
            return False
    return True


def build_stages(network: nn.Module, plan: Plan) -> list[nn.Module]:
    """Build the stages of a plan from the layers of a sequential network.

    Raises:
        CutError: The plan does not fit the network, or stages share parameters.
    """
    plan.require_for(network)

    # The layers at which the stages begin.
    layers = layers_in_order(network)
    names = list(layers)
    missing = [
        f"it cuts before layer {cut!r}, which is none of {names}"
        for cut in plan.cuts
        if cut not in layers
    ]
    raise_problems(CutError, "the plan is for another network", missing)
    bounds = [0, *(names.index(cut) for cut in plan.cuts), len(names)]
    problems = [
        f"stage {k} would be empty; it would begin at layer {names[a]!r} and end before "
        f"{names[b] if b < len(names) else 'the end'!r}"
        for k, (a, b) in enumerate(pairwise(bounds))
        if a >= b
    ]
    raise_problems(CutError, f"cannot cut this network into {plan.stages} stages", problems)

    # The stages.
    stages = [
        nn.Sequential(*(layers[name] for name in names[a:b])) for a, b in pairwise(bounds)
    ]
    require_separate(network, stages)
    return list(stages)


def require_separate(network: nn.Module, stages: Sequence[nn.Module]) -> None:
    """Check that each parameter and buffer of a network is in exactly one stage.

    Raises:
        CutError: A stage is empty, or a parameter or buffer is in two stages or in none.
    """
    if not stages:
        raise CutError("there are no stages; give at least one module")
    problems = [
        f"stage {k} is empty; give it at least one layer"
        for k, stage in enumerate(stages)
        if isinstance(stage, nn.Sequential) and len(stage) == 0
    ]

    # Weights and statistics in two stages, or in none.
    owned = [{id(each) for each in (*stage.parameters(), *stage.buffers())} for stage in stages]
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        owners = [k for k, ids in enumerate(owned) if id(tensor) in ids]
        if len(owners) > 1:
            problems.append(
                f"{kind} {name!r} is shared by stages {', '.join(map(str, owners))}; "
                "keep its layers in one stage"
            )
        elif not owners:
            problems.append(f"{kind} {name!r} is in no stage; add its layer to one")
    raise_problems(CutError, f"cannot cut this network into {len(stages)} stages", problems)
