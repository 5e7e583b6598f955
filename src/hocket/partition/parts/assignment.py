"""Modules and weights of a network that belong to one stage."""

from collections.abc import Sequence
from itertools import chain

from torch import nn

from hocket.partition.cut_graph import CutGraph


def assign(
    graph: CutGraph, stage_of_layer: Sequence[int], stage: int
) -> tuple[dict[str, nn.Module], list[str]]:
    """Return the parts of a network that belong to a stage.

    Args:
        graph: The network and its cut points.
        stage_of_layer: Stage of each layer.
        stage: Number of the stage.

    Returns:
        Modules that are in the stage as a whole, by name, and the names of parameters and
        buffers of other modules that are in the stage.
    """
    modules: dict[str, nn.Module] = {}
    weights: list[str] = []

    def add(module: nn.Module, prefix: str) -> None:
        # Of a scripted module they have keys(), and cannot be iterated over themselves.
        for name in dict.fromkeys((*module._parameters.keys(), *module._buffers.keys())):
            layer = graph.weight_layers.get(prefix + name)
            if layer is not None and stage_of_layer[layer] == stage:
                weights.append(prefix + name)
        for name, child in module._modules.items():
            if child is None:
                continue
            stages = {stage_of_layer[layer] for layer in _find_layers(graph, prefix + name)}
            weightless = not any(True for _ in chain(child.parameters(), child.buffers()))
            # One without weights is in each stage that calls it, such as a common dropout.
            if stages == {stage} or (weightless and stage in stages):
                modules[prefix + name] = child
            elif stage in stages:
                add(child, f"{prefix}{name}.")

    add(graph.network, "")
    return modules, weights


def _find_layers(graph: CutGraph, name: str) -> set[int]:
    """Return all layers that use weights of a module, or call weightless modules in it."""
    prefix = f"{name}."
    layers = {n for w, n in graph.weight_layers.items() if w.startswith(prefix)}
    for module, called_in in graph.weightless_layers.items():
        if module == name or module.startswith(prefix):
            layers.update(called_in)
    return layers
