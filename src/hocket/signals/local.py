"""Signals of a loss that a stage computes by itself: the network's, or an auxiliary head's."""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from hocket.errors import OptionError, format_problems
from hocket.signals.heads import HeadKind, build_head
from hocket.signals.losses import Loss
from hocket.signals.signal import BackwardRoots, SignalInput
from hocket.signals.targets import label_errors_as_data_errors
from hocket.tree import Tree


def _loss_roots(loss: Loss, predictions: Tree, targets: Tree) -> BackwardRoots:
    with label_errors_as_data_errors(predictions):
        value = loss(predictions, targets)
    return BackwardRoots((value,), (None,), value.detach())


@dataclass(frozen=True)
class Objective:
    """Loss of the network, computed from the stage's output: the signal of every last stage."""

    needs_gradient = False
    learns_from_gradient = False

    def build_network(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return an identity: there is nothing to train."""
        return nn.Identity()

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the loss of the output."""
        return _loss_roots(inputs.loss, inputs.output, inputs.targets)

    def predict(self, network: nn.Module, output: Tree) -> Tensor | None:
        """Return None: the output is the prediction."""
        return None


@dataclass(frozen=True)
class Local:
    """Loss of an auxiliary head on the stage's output (DGL, arXiv 1901.08164, algorithm 1).

    Attributes:
        head: Kind of auxiliary network: ``mlp-sr``, ``mlp`` or ``cnn``.
        width: Factor on the width of its hidden layers, above 0.
        depth: Number of hidden layers of its perceptron; 0 for a linear prediction.

    Raises:
        OptionError: Width or depth is out of range, or has no effect on this head.
    """

    head: HeadKind = "mlp-sr"
    width: float = 1.0
    depth: int = 3

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.width < math.inf:
            problems.append(f"width is {self.width!r}; use a number above 0")
        if not isinstance(self.depth, int) or self.depth < 0:
            problems.append(f"depth is {self.depth!r}; use a whole number of at least 0")
        if self.head == "cnn" and (self.width, self.depth) != (1, 3):
            problems.append(
                f"the head 'cnn' has no hidden layers that width={self.width!r} and "
                f"depth={self.depth!r} could change; leave them out, or use 'mlp'"
            )
        elif self.depth == 0 and self.width != 1:
            problems.append(
                f"depth=0 leaves no hidden layers that width={self.width!r} could change; "
                "leave one of them out"
            )
        if problems:
            raise OptionError(format_problems("a local loss cannot be built", problems))

    needs_gradient = False
    learns_from_gradient = False

    def build_network(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the head; it trains with the stage and is dropped afterwards."""
        return build_head(self.head, shape, outputs, width=self.width, depth=self.depth)

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the loss of the head's prediction."""
        prediction = self.predict(network, inputs.output)
        return _loss_roots(inputs.loss, prediction, inputs.targets)

    def predict(self, network: nn.Module, output: Tree) -> Tensor:
        """Return the head's prediction, (B, O) or (B, T, O) of O outputs."""
        prediction: Tensor = network(output)
        return prediction
