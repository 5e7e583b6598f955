"""Measured cost of each layer: times of forward and backward, and sizes in bytes."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor, nn

from hocket.partition.parts.copied_modules import copy_modules
from hocket.partition.parts.partial_module import PartialModule
from hocket.restore import preserve_rng
from hocket.tree import Tree, as_leaf, copy_tensors, map_tensors, tensors


@dataclass(frozen=True)
class LayerCost:
    """Cost of a layer in training.

    Attributes:
        forward_s: Median time of a forward, in seconds.
        backward_s: Median time of a backward, in seconds.
        output_bytes: Size of its output.
        kept_bytes: Size of the tensors that its graph saves for the backward, without weights.
        weight_bytes: Size of its parameters and buffers.
    """

    forward_s: float
    backward_s: float
    output_bytes: int
    kept_bytes: int
    weight_bytes: int

    @property
    def total_s(self) -> float:
        """Time of forward and backward, in seconds."""
        return self.forward_s + self.backward_s


def profile(
    layers: Mapping[str, nn.Module], sample: Tree, *, repetitions: int = 15
) -> dict[str, LayerCost]:
    """Measure each layer on its device with the present number of threads.

    The layers run in order as in training, forward and then backward, so that caches are in the
    same state. Copies of the layers run: their weights, gradients and statistics do not change.
    Times are medians, because single measurements may be disturbed.

    Args:
        layers: Layers in order. For a `PartialModule`, the steps before it are not counted.
        sample: A batch of inputs, of the size and memory format of training.
        repetitions: Number of measurements, after two that are discarded.
    """
    copies = dict(zip(layers, copy_modules(list(layers.values())), strict=True))
    used = [
        *tensors(sample),
        *(weight for layer in copies.values() for weight in layer.parameters()),
    ]
    with preserve_rng({tensor.device for tensor in used}):
        passes = [
            _run_pass(copies, sample, count_bytes=repetition == 0)
            for repetition in range(repetitions + 2)
        ]
    return {
        name: replace(
            cost,
            forward_s=median(each[name].forward_s for each in passes[2:]),
            backward_s=median(each[name].backward_s for each in passes[2:]),
        )
        for name, cost in passes[0].items()
    }


def _run_pass(
    layers: Mapping[str, nn.Module], sample: Tree, *, count_bytes: bool
) -> dict[str, LayerCost]:
    """Run forward and backward of all layers, and return what they cost in this pass.

    Sizes are measured only if ``count_bytes`` is set, as that makes the times longer.
    """
    now = synchronized_clock(sample)
    start_s = 0.0

    def start() -> None:
        nonlocal start_s
        start_s = now()

    # Forward, layer by layer.
    costs: dict[str, LayerCost] = {}
    passed: list[tuple[str, Tree, Tree]] = []
    value = sample
    for name, layer in layers.items():
        inputs = map_tensors(as_leaf, value)
        if isinstance(layer, PartialModule):
            layer.on_begin = start  # once more, when its part begins
        saved = _SavedBytes(layer)
        counted = torch.autograd.graph.saved_tensors_hooks(saved, lambda kept: kept)
        # Copies, because a layer may change its input in place.
        entered = copy_tensors(inputs)
        start()
        with counted if count_bytes else nullcontext():
            value = layer(entered)
        costs[name] = LayerCost(
            forward_s=now() - start_s,
            backward_s=0.0,
            output_bytes=_count_bytes(tensors(value)),
            kept_bytes=saved.total,
            weight_bytes=_count_bytes([*layer.parameters(), *layer.buffers()]),
        )
        passed.append((name, inputs, value))

    # Backward, from the last layer to the first.
    gradients: list[Tensor | None] = [torch.ones_like(output) for output in tensors(value)]
    while passed:
        # Popped, so that a layer's graph is freed after its backward, as in training.
        name, inputs, output = passed.pop()
        pairs = zip(tensors(output), gradients, strict=True)
        reached = [(o, g) for o, g in pairs if o.requires_grad and g is not None]
        start()
        if reached:
            torch.autograd.backward([o for o, _ in reached], [g for _, g in reached])
        costs[name] = replace(costs[name], backward_s=now() - start_s)
        gradients = [entry.grad for entry in tensors(inputs)]
    for layer in layers.values():
        layer.zero_grad(set_to_none=True)
    return costs


class _SavedBytes:
    """Pack hook that counts the bytes that autograd saves, each storage once."""

    def __init__(self, layer: nn.Module) -> None:
        weights = (*layer.parameters(), *layer.buffers())
        self._counted = {weight.untyped_storage().data_ptr() for weight in weights}
        self.total = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._counted:
            self._counted.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor


def synchronized_clock(sample: Tree) -> Callable[[], float]:
    """Return a clock in seconds that first waits for the GPUs of the sample, if any."""
    devices = {value.device for value in tensors(sample) if value.is_cuda}

    def now() -> float:
        for device in devices:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def _count_bytes(values: list[Tensor]) -> int:
    return sum(value.nbytes for value in values)
