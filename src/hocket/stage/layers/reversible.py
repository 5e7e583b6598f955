"""Reversible layers: those whose input can be computed from their output."""

from collections.abc import Sequence

import torch
from torch import nn

from hocket.errors import LinearizeError, OptionError, format_problems
from hocket.methods.method import Method
from hocket.partition.sequential import is_sequential, layers_in_order
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.tree import Tree, tensors

TOLERANCE = 1e-2
"""Largest relative error of an output that is computed again from its input."""


def layers_of(stage: nn.Module) -> list[nn.Module]:
    """Return the layers that a stage calls one after the other; itself if they are unknown."""
    known = is_sequential(stage) and stage._modules
    return list(layers_in_order(stage).values()) if known else [stage]


def _is_reversible(layer: nn.Module) -> bool:
    return callable(getattr(layer, "reverse", None))


def inverts(method: Method, module: nn.Module, stage: int, stages: int) -> bool:
    """Return True if a stage computes its input from its output, and so keeps no batch.

    Each layer has a ``reverse`` then: in training mode ``forward(reverse(y))`` is ``y`` up to
    rounding, at any weights.

    Args:
        method: The method.
        module: Layers of the stage.
        stage: Number of the stage, from 0.
        stages: Number of stages.
    """
    late = method.linearize == "invert" and method.delay(stage, stages) > 0
    return late and all(map(_is_reversible, layers_of(module)))


def require_invertible(
    method: Method, modules: Sequence[nn.Module], names: NetworkNames
) -> None:
    """Refuse stages of which none can be inverted, if the method is to invert them.

    Args:
        method: The method.
        modules: Layers of each stage.
        names: Names of the layers in the network.

    Raises:
        OptionError: Each stage with a late gradient has a layer without an inverse.
    """
    count = len(modules)
    late = [k for k in range(count) if method.delay(k, count) > 0]
    if method.linearize != "invert" or not late:
        return
    if any(inverts(method, modules[k], k, count) for k in late):
        return

    # Name the first layer of each stage that is in the way.
    problems = []
    for k in late:
        layer = next(one for one in layers_of(modules[k]) if not _is_reversible(one))
        name = {each: name for name, each in names.of_layers(modules[k])}[layer]
        found = f"layer {name!r} ({type(layer).__name__})" if name else "it"
        problems.append(f"stage {k}: {found} has no reverse")
    problems.append(
        "cut so that a stage before the last has reversible layers alone, each with "
        "forward(x) and reverse(y), or use linearize='recompute', as method 'dsp' does"
    )
    message = f"method {method.name!r} inverts stages, and none of {count} can be inverted"
    raise OptionError(format_problems(message, problems))


@torch.no_grad()
def require_inverse(layer: nn.Module, name: str, inputs: Tree, outputs: Tree) -> None:
    """Refuse a layer whose reverse is not the inverse of its forward.

    Args:
        layer: The layer.
        name: Its name in the network.
        inputs: Result of its reverse.
        outputs: Output that its reverse was given.

    Raises:
        LinearizeError: The inputs have another output.
    """
    pairs = list(zip(tensors(layer(inputs)), tensors(outputs), strict=True))
    error = sum(float((again - given).double().norm()) for again, given in pairs)
    size = sum(float(given.double().norm()) for _, given in pairs)
    if error > TOLERANCE * size:  # False for NaN, which is found where it is looked for
        raise LinearizeError(
            f"layer {name!r} ({type(layer).__name__}): forward(reverse(y)) differs by "
            f"{error:.2g} from y, whose norm is {size:.2g}; wanted at most {TOLERANCE:g} of "
            "that; make reverse the inverse of forward in training mode, without dropout, or "
            "remove it from the layer, whose stage then keeps its inputs"
        )
