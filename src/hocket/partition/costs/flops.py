"""Counted operations of each layer, and of each packet that a cut sends."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hocket.partition.cut_graph import CutGraph
from hocket.partition.recording.intercept import Function, call_intercepted, intercept
from hocket.partition.recording.recorder import call_network
from hocket.partition.sequential import layers_in_order
from hocket.partition.unfit_network import sample_error
from hocket.restore import dry_run
from hocket.tree import Tree, copy_tensors, tensors

# Reading and writing one element takes about as long as this many operations on it, on the
# processors we measured. It distinguishes layers without counted operations, such as norms.
OPERATIONS_PER_ELEMENT = 10
# The same for an element that is sent: 4 ns on either side, between processes of one machine.
OPERATIONS_PER_ELEMENT_SENT = 200


@torch.enable_grad()  # for layers that differentiate in their forward
def count_flops(network: nn.Module, sample: Tree) -> list[float]:
    """Count the operations of each layer of a sequential network in a forward.

    Elements that a layer writes count as operations too.

    Raises:
        CutError: A layer does not take the output of the previous one.
    """  # noqa: DOC501  # sample_error returns a CutError
    counts = []
    value = sample
    with dry_run(network), _encoder_layers_as_parts():
        for name, layer in layers_in_order(network).items():
            try:
                with _FlopCounter() as counter:
                    value = layer(copy_tensors(value))
            except Exception as error:
                where = f"layer {name!r} fails: "
                raise sample_error(network, sample, error, where) from error
            elements = sum(output.numel() for output in tensors(value))
            counts.append(float(counter.total + OPERATIONS_PER_ELEMENT * elements))
    return counts


@torch.enable_grad()  # for networks that differentiate in their forward
def count_flops_between(graph: CutGraph) -> list[float]:
    """Count the operations of each layer between cut points, in one forward."""
    network = graph.network
    names = {module: name for name, module in network.named_modules()}
    with dry_run(network), _encoder_layers_as_parts(), _FlopCounter() as counter:
        meter = _LayerMeter({point.name for point in graph.cut_points}, counter)
        with intercept(names, meter):
            call_network(network, copy_tensors(graph.sample))
        meter.end_layer()
    return meter.counts


@contextmanager
def _encoder_layers_as_parts() -> Iterator[None]:
    """Context manager in which encoder layers and attention run as in training.

    In evaluation mode without gradients they would be one kernel that is not counted.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _lstm_flops(inputs: Tensor, *weights_and_state: Any, out_val: Any, **_: Any) -> int:
    """Count the operations of an LSTM: both its matrices meet every element of the sequence."""
    products: int = sum(matrix.numel() for matrix in weights_and_state[:2])
    return 2 * math.prod(inputs.shape[:-1]) * products


def _attention_flops(
    query: Tensor, key: Tensor, *_: Any, out_val: tuple[Tensor, Tensor], **__: Any
) -> int:
    """Count the operations of attention: every query meets each key, and then each value."""
    return 2 * key.size(-2) * (query.numel() + out_val[0].numel())


# Kernels of the CPU that PyTorch does not count.
_CPU_FLOPS: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mkldnn_rnn_layer: _lstm_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
}


class _FlopCounter(TorchDispatchMode):
    """Mode that adds up the operations of all kernels.

    PyTorch's FlopCounterMode also tracks modules, with hooks that fail in some networks.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        kernel = func._overloadpacket
        count = flop_registry.get(kernel) or _CPU_FLOPS.get(kernel)
        if count is not None:
            self.total += count(*args, **kwargs, out_val=output)
        return output


@dataclass
class _LayerMeter:
    """Interceptor that executes every step unchanged and counts operations by layer."""

    cut_points: set[str]
    counter: _FlopCounter
    counts: list[float] = field(default_factory=list)
    elements: int = 0
    counted: float = 0.0

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name in self.cut_points:
            self.end_layer()
        output = call_intercepted(module, args, kwargs)
        if not module._modules:
            self.elements += sum(value.numel() for value in tensors(output))
        return output

    def function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return function(*args, **kwargs)

    def end_layer(self) -> None:
        """Append the count since the end of the previous layer."""
        total = self.counter.total + OPERATIONS_PER_ELEMENT * self.elements
        self.counts.append(total - self.counted)
        self.counted = total
