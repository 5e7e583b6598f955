"""How much each layer has to compute, and each packet to carry, counted."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hocket.modes import evaluation_mode
from hocket.partition.cut_points import CutGraph
from hocket.partition.intercept import Go, call_intercepted, intercept
from hocket.partition.recorder import call_network, sample_error
from hocket.partition.sequential import layers_in_order
from hocket.tree import Tree, copy_tensors, tensors

# Reading and writing a number costs about as much time as this many operations on it, on the
# processors at hand. It separates layers that count no operations, such as normalisation.
OPERATIONS_PER_NUMBER = 10
# The same for a number that is sent: 4 ns on either side, between processes of one machine.
OPERATIONS_PER_NUMBER_SENT = 200


@torch.no_grad()
def count_flops(network: nn.Module, sample: Tree) -> list[float]:
    """Operations of a forward of each layer of a chain, with a share for the numbers it writes.

    Raises:
        CutError: A layer does not take what the sample has become.
    """
    counts = []
    value = sample
    with evaluation_mode(network):
        for name, layer in layers_in_order(network).items():
            try:
                with FlopCounterMode(display=False) as counter:
                    value = layer(copy_tensors(value))
            except Exception as error:
                where = f"layer {name!r} fails: "
                raise sample_error(network, sample, error, where) from error
            written = sum(output.numel() for output in tensors(value))
            counts.append(float(counter.get_total_flops() + OPERATIONS_PER_NUMBER * written))
    return counts


@torch.no_grad()
def count_flops_between(outline: CutGraph) -> list[float]:
    """The same of the layers between the borders of an outline, in one forward."""
    network = outline.network
    names = {module: name for name, module in network.named_modules()}
    with evaluation_mode(network), FlopCounterMode(display=False) as counter:
        meter = _Meter({border.name for border in outline.cut_points}, counter)
        with intercept(names, meter):
            call_network(network, copy_tensors(outline.sample))
        meter.mark()
    return meter.found


@dataclass
class _Meter:
    """Lets everything happen and counts from border to border."""

    borders: set[str]
    counter: FlopCounterMode
    found: list[float] = field(default_factory=list)
    numbers: int = 0
    before: float = 0.0

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name in self.borders:
            self.mark()
        output = call_intercepted(module, args, kwargs)
        if not module._modules:
            self.numbers += sum(value.numel() for value in tensors(output))
        return output

    def function(self, go: Go, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return go(*args, **kwargs)

    def mark(self) -> None:
        """A layer ends here."""
        total = self.counter.get_total_flops() + OPERATIONS_PER_NUMBER * self.numbers
        self.found.append(total - self.before)
        self.before = total
