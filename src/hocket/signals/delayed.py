"""Signal of a stage that waits for the gradient of the network's loss from the next stage."""

from dataclasses import dataclass

from torch import nn

from hocket.errors import OptionError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range
from hocket.signals.signal import BackwardRoots, Signal, SignalInput
from hocket.tree import tensors


@dataclass(frozen=True)
class Delayed(Signal):
    """Gradient received from the next stage, times ``shrink``: d_k = shrink * g_(k+1).

    The factor acts at every edge that a gradient crosses, so stage k of K gets it ``K-1-k``
    times (gradient shrinking, beta; FDG, arXiv 1906.09108, section 3).

    Attributes:
        shrink: Factor in (0, 1].

    Raises:
        OptionError: ``shrink`` is outside (0, 1].
    """

    shrink: float = 1.0

    def __post_init__(self) -> None:
        problems = wrong_fields(self) + out_of_range(self, {"shrink": Range(above=0, most=1)})
        raise_problems(OptionError, "a delayed gradient is impossible", problems)

    needs_gradient = True
    computes = False

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the outputs with the gradients received for them."""
        roots, gradients = [], []
        for root, gradient in zip(tensors(inputs.output), inputs.received, strict=True):
            if gradient is not None:
                roots.append(root)
                gradients.append(gradient if self.shrink == 1 else gradient * self.shrink)
        return BackwardRoots(tuple(roots), tuple(gradients))
