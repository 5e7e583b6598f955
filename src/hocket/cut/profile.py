"""How long each layer takes, forward and backward: what a cut by measured time balances."""

import copy
import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hocket.tree import Tree, map_tensors, tensors


def profile(
    layers: Mapping[str, nn.Module], sample: Tree, *, repetitions: int = 15
) -> dict[str, float]:
    """Seconds of forward plus backward of each layer, the least over repetitions.

    The least, as other programs only add to it, and not evenly. The layers run in turn as in
    training, forward and then backward, so that each finds the caches as it will find them.
    They are copied first: weights, gradients and the statistics of norms stay as they are.
    Times are those of the present number of threads.

    Args:
        layers: The chain.
        sample: A batch of inputs, of the size and memory format that training will use.
        repetitions: How often to time; one more before them does not count.
    """
    # Together, so that what layers share is still shared by their copies.
    copies = dict(zip(layers, copy.deepcopy(list(layers.values())), strict=True))
    seen = [_once(copies, sample) for _ in range(repetitions + 1)][1:]
    return {name: min(times[name] for times in seen) for name in layers}


def _once(layers: Mapping[str, nn.Module], sample: Tree) -> dict[str, float]:
    """The times of one pass."""
    times: dict[str, float] = {}
    passed: list[tuple[str, Tree, Tree]] = []
    value = sample
    for name, layer in layers.items():
        given = map_tensors(_leaf, value) if passed else value
        start = time.perf_counter()
        value = layer(given)
        times[name] = time.perf_counter() - start
        passed.append((name, given, value))
    gradients: list[Tensor | None] = [torch.ones_like(output) for output in tensors(value)]
    while passed:
        # Popped, so that a layer's graph is freed where it is in training: after its backward.
        name, given, output = passed.pop()
        start = time.perf_counter()
        _backward(tensors(output), gradients)
        times[name] += time.perf_counter() - start
        gradients = [entry.grad for entry in tensors(given)]
    for layer in layers.values():
        layer.zero_grad(set_to_none=True)
    return times


def _leaf(value: Tensor) -> Tensor:
    """The value where a graph begins, as a stage receives it."""
    entry = value.detach()
    return entry.requires_grad_() if entry.is_floating_point() else entry


def _backward(outputs: list[Tensor], gradients: list[Tensor | None]) -> None:
    """Backward of the outputs that depend on weights or inputs."""
    reached = [
        number
        for number, (output, gradient) in enumerate(zip(outputs, gradients, strict=True))
        if output.requires_grad and gradient is not None
    ]
    if reached:
        torch.autograd.backward([outputs[n] for n in reached], [gradients[n] for n in reached])
