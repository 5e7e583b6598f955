"""The error of a stage: the protocol of its signal, and the roots of its backward."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from hocket.signals.losses import Loss
from hocket.tree import Tree

DeferredLoss = Callable[[tuple[Tensor | None, ...]], Tensor]
"""Returns the loss of a signal's network, a scalar, given the target that came back."""


@dataclass(frozen=True)
class LaterLayers:
    """Layers behind a stage, for signals whose network is to be like them.

    Attributes:
        shapes: Shape of the output of each later layer that has weights, without the batch; but
            for the last layer of the network, which predicts.
        place: Place of the stage among all but the last one, from 0 to 1.
        before: Number of layers with weights in front of the last one of the stage.
    """

    shapes: tuple[tuple[int, ...], ...] = ()
    place: float = 0.0
    before: int = 0


UNKNOWN_LAYERS = LaterLayers()


@dataclass(frozen=True)
class SignalInput:
    """Values that a signal may compute the error of one batch from.

    Attributes:
        output: Output of the stage with its graph, tensors of shape (B, ...).
        targets: Targets of the batch, (B, ...).
        received: Gradient that came back for each tensor of the output, of the same shape; None
            if none came back.
        loss: Loss of the network.
    """

    output: Tree
    targets: Tree
    received: tuple[Tensor | None, ...]
    loss: Loss


@dataclass(frozen=True)
class BackwardRoots:
    """Roots of a stage's backward, and the gradients along which they are differentiated.

    Attributes:
        roots: Tensors with a graph.
        gradients: Gradient of each root, of the same shape; None means 1, and needs a scalar
            root.
        loss: Loss that the stage computed, a detached scalar; None if it computed none.
        deferred: Loss of a network that learns from the target that comes back later.
    """

    roots: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    loss: Tensor | None = None
    deferred: DeferredLoss | None = None


class Signal(Protocol):
    """Source of a stage's error. Signals are stateless values; weights live in a network."""

    @property
    def needs_gradient(self) -> bool:
        """True if a backward needs the gradient that comes back over the edge."""

    @property
    def learns_from_gradient(self) -> bool:
        """True if the gradient that comes back over the edge is a target to learn from."""

    def build_network(
        self,
        shape: tuple[int, ...],
        output_shape: tuple[int, ...] | None,
        later: LaterLayers = UNKNOWN_LAYERS,
    ) -> nn.Module:
        """Build the signal's network.

        Args:
            shape: Shape of the stage's output without the batch.
            output_shape: Shape of the network's output without the batch; None if that is
                not one tensor of floating point numbers.
            later: Layers behind the stage.
        """

    def may_draw(self, loss: Loss) -> bool:
        """Return True if anything but the layers of the network may draw random numbers.

        Args:
            loss: Loss of the network.
        """

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the roots of a stage's backward for one batch."""

    def predict(self, network: nn.Module, output: Tree) -> Tensor | None:
        """Return the prediction of the targets, (B, ...); None if the signal predicts none."""


def expects_answer(signal: Signal) -> bool:
    """Return True if a gradient or a target comes back for every output."""
    return signal.needs_gradient or signal.learns_from_gradient
