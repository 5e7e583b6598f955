"""What each layer takes, measured: time forward and backward, and bytes. Balances a cut."""

import copy
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn

from hocket.partition.partial_module import PartialModule
from hocket.tree import Tree, as_leaf, copy_tensors, map_tensors, tensors


@dataclass(frozen=True)
class LayerCost:
    """What a layer takes in training.

    Attributes:
        forward_s: Seconds of a forward, the median.
        backward_s: The same of a backward.
        output_bytes: What it gives to the next layer.
        kept_bytes: What its graph keeps from forward to backward, without weights.
        weight_bytes: Its parameters and buffers.
    """

    forward_s: float
    backward_s: float
    output_bytes: int
    kept_bytes: int
    weight_bytes: int

    @property
    def total_s(self) -> float:
        """Seconds of forward and backward."""
        return self.forward_s + self.backward_s


def merge_costs(
    costs: Mapping[str, LayerCost], firsts: Collection[str]
) -> dict[str, LayerCost]:
    """The costs of longer layers: those that begin with these, the first one anyway.

    >>> one = LayerCost(1.0, 2.0, output_bytes=8, kept_bytes=4, weight_bytes=2)
    >>> both = joined({"a": one, "b": one, "c": one}, firsts=["c"])
    >>> list(both), both["a"].total_s
    (['a', 'c'], 6.0)
    """
    found: dict[str, LayerCost] = {}
    last = ""
    for name, cost in costs.items():
        if found and name not in firsts:
            before = found[last]
            found[last] = LayerCost(
                forward_s=before.forward_s + cost.forward_s,
                backward_s=before.backward_s + cost.backward_s,
                output_bytes=cost.output_bytes,
                kept_bytes=before.kept_bytes + cost.kept_bytes,
                weight_bytes=before.weight_bytes + cost.weight_bytes,
            )
        else:
            last = name
            found[name] = cost
    return found


@dataclass
class _Seen:
    """One layer over all passes."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    output_bytes: int = 0
    kept_bytes: int = 0


def profile(
    layers: Mapping[str, nn.Module], sample: Tree, *, repetitions: int = 15
) -> dict[str, LayerCost]:
    """What each layer takes, where it is and with the present number of threads.

    The layers run in turn as in training, forward and then backward, so that each finds the
    caches as it will find them. They are copied first: weights, gradients and the statistics of
    norms stay as they are. Medians, as a single time may be disturbed.

    Args:
        layers: The chain; for parts of a network's forward, the way there is not counted.
        sample: A batch of inputs, of the size and memory format that training will use.
        repetitions: How often to time; two more before them do not count.
    """
    # Together, so that what layers share is still shared by their copies.
    copies = dict(zip(layers, copy.deepcopy(list(layers.values())), strict=True))
    seen = {name: _Seen() for name in layers}
    with torch.random.fork_rng():
        for repetition in range(repetitions + 2):
            _once(copies, sample, seen, counts=repetition == 0)
    return {
        name: LayerCost(
            forward_s=median(seen[name].forward_s[2:]),
            backward_s=median(seen[name].backward_s[2:]),
            output_bytes=seen[name].output_bytes,
            kept_bytes=seen[name].kept_bytes,
            weight_bytes=_bytes([*layer.parameters(), *layer.buffers()]),
        )
        for name, layer in layers.items()
    }


def _once(
    layers: Mapping[str, nn.Module], sample: Tree, seen: Mapping[str, _Seen], *, counts: bool
) -> None:
    """One pass."""
    now = synchronized_clock(sample)
    passed: list[tuple[_Seen, Tree, Tree]] = []
    value = sample
    for name, layer in layers.items():
        given = map_tensors(as_leaf, value) if passed else value
        found = seen[name]
        started = _Started(now)
        if isinstance(layer, PartialModule):
            layer.on_begin = started
        kept = _Kept(layer)
        entered = copy_tensors(given)
        started()
        if counts:
            with torch.autograd.graph.saved_tensors_hooks(kept, _same):
                value = layer(entered)
            found.kept_bytes = kept.total
            found.output_bytes = _bytes(tensors(value))
        else:
            value = layer(entered)
        found.forward_s.append(now() - started.at_s)
        passed.append((found, given, value))
    gradients: list[Tensor | None] = [torch.ones_like(output) for output in tensors(value)]
    while passed:
        # Popped, so that a layer's graph is freed where it is in training: after its backward.
        found, given, output = passed.pop()
        start_s = now()
        _backward(tensors(output), gradients)
        found.backward_s.append(now() - start_s)
        gradients = [entry.grad for entry in tensors(given)]
    for layer in layers.values():
        layer.zero_grad(set_to_none=True)


class _Started:
    """When a layer began: a part of a forward does so only once it is reached."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.at_s = 0.0

    def __call__(self) -> None:
        self.at_s = self._now()


class _Kept:
    """Counts what autograd keeps, each memory once."""

    def __init__(self, layer: nn.Module) -> None:
        weights = (*layer.parameters(), *layer.buffers())
        self._known = {weight.untyped_storage().data_ptr() for weight in weights}
        self.total = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor


def _same(tensor: Tensor) -> Tensor:
    return tensor


def synchronized_clock(sample: Tree) -> Callable[[], float]:
    """Seconds on a clock that a GPU has to reach first."""
    devices = {value.device for value in tensors(sample) if value.is_cuda}

    def now() -> float:
        for device in devices:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def _backward(outputs: list[Tensor], gradients: list[Tensor | None]) -> None:
    """Backward of the outputs that depend on weights or inputs."""
    pairs = zip(outputs, gradients, strict=True)
    reached = [(o, g) for o, g in pairs if o.requires_grad and g is not None]
    if reached:
        torch.autograd.backward([o for o, _ in reached], [g for _, g in reached])


def _bytes(values: list[Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values)
