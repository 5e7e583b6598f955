"""Where to cut: the first layer of every stage but the first."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hocket.errors import CutError
from hocket.modes import evaluating
from hocket.tree import Tree, copied, tensors

# Reading and writing a number costs about as much time as this many operations on it, on the
# processors at hand. It separates layers that count no operations, such as normalisation.
OPERATIONS_PER_NUMBER = 10


@dataclass(frozen=True)
class Plan:
    """The cuts of a network.

    Attributes:
        cuts: Names of the layers at which stages 1, 2, ... begin.
    """

    cuts: tuple[str, ...]

    @property
    def stages(self) -> int:
        """K."""
        return len(self.cuts) + 1


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
    if not 1 <= stages <= len(layers):
        raise CutError(
            f"cannot cut this network into {stages} stages: it has {len(layers)} layers; "
            f"ask for 1 to {len(layers)} stages"
        )
    if stages == 1:
        return Plan(())
    names = list(layers)
    return Plan(tuple(names[i] for i in split(operations(layers, sample), stages)))


@torch.no_grad()
def operations(layers: dict[str, nn.Module], sample: Tree) -> list[float]:
    """Operations of a forward of each layer, with a share for the numbers it writes."""
    counts = []
    value = sample
    with evaluating(nn.ModuleList(layers.values())):
        for layer in layers.values():
            with FlopCounterMode(display=False) as counter:
                value = layer(copied(value))
            written = sum(output.numel() for output in tensors(value))
            counts.append(float(counter.get_total_flops() + OPERATIONS_PER_NUMBER * written))
    return counts


def split(costs: list[float], parts: int) -> list[int]:
    """The first item of parts 1, 2, ... of the split with the smallest largest part.

    Exact, by dynamic programming over (items, parts); among equals, the earliest cuts.

    >>> split([1.0, 2.0, 3.0, 4.0], parts=2)
    [3]
    """
    total = [0.0, *accumulate(costs)]
    count = len(costs)
    best = [total[n] for n in range(count + 1)]  # the largest part of the first n items
    cuts: list[list[int]] = [[] for _ in range(count + 1)]
    for part in range(2, parts + 1):
        longer, longer_cuts = [float("inf")] * (count + 1), [[0]] * (count + 1)
        for n in range(part, count + 1):
            for cut in range(n - 1, part - 2, -1):
                last = total[n] - total[cut]
                if last > longer[n]:
                    break  # an earlier cut only makes the last part larger
                if (largest := max(best[cut], last)) <= longer[n]:
                    longer[n], longer_cuts[n] = largest, [*cuts[cut], cut]
        best, cuts = longer, longer_cuts
    return cuts[count]
