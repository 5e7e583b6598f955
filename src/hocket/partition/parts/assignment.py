"""Modules and weights of a network that belong to one stage."""

from collections.abc import Sequence
from itertools import chain

from torch import nn

from hocket.partition.cut_graph import CutGraph


class Assignment:
    """Modules and weights of one stage.

    Args:
        graph: The network and its cut points.
        stage_of_layer: Stage of each layer.
        stage: Number of the stage.

    Attributes:
        modules: Modules that are in the stage as a whole, by name.
        weights: Names of parameters and buffers of other modules that are in the stage.
    """

    def __init__(self, graph: CutGraph, stage_of_layer: Sequence[int], stage: int) -> None:
        self.graph = graph
        self.stage_of_layer = stage_of_layer
        self.stage = stage
        self.modules: dict[str, nn.Module] = {}
        self.weights: list[str] = []

    def add(self, module: nn.Module, name: str) -> None:
        """Add those parts of a module that belong to the stage."""
        prefix = f"{name}." if name else ""
        layers = self.graph.weight_layers
        # Of a scripted module they have keys(), and cannot be iterated over themselves.
        own = (*module._parameters.keys(), *module._buffers.keys())
        for weight_name in dict.fromkeys(own):
            weight = prefix + weight_name
            if weight in layers and self.stage_of_layer[layers[weight]] == self.stage:
                self.weights.append(weight)
        for child_name, child in module._modules.items():
            if child is None:
                continue
            stages = self._find_stages(prefix + child_name)
            weightless = not any(True for _ in chain(child.parameters(), child.buffers()))
            # One without weights is in each stage that calls it, such as a common dropout.
            if stages == {self.stage} or (weightless and self.stage in stages):
                self.modules[prefix + child_name] = child
            elif self.stage in stages:
                self.add(child, prefix + child_name)

    def _find_stages(self, name: str) -> set[int]:
        """Return all stages that use weights of a module, or call weightless modules in it."""
        prefix = f"{name}."
        layers = {n for w, n in self.graph.weight_layers.items() if w.startswith(prefix)}
        for module, called_in in self.graph.weightless_layers.items():
            if module == name or module.startswith(prefix):
                layers.update(called_in)
        return {self.stage_of_layer[layer] for layer in layers}
