"""The error of a stage: its signal, the roots of its backward, and the layout of its output.

Heads and synthesizers are built for a map (C, H, W), tokens (T, D) or a vector (D,), which are
recognised by the number of dimensions of one sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from hocket.errors import OptionError
from hocket.signals.losses import Loss, may_draw
from hocket.tree import Tree

Layout = Literal["vector", "tokens", "map"]


def detect_layout(shape: Sequence[int]) -> Layout:
    """Return the layout of a stage's output, given its shape without the batch.

    Raises:
        OptionError: The shape has another number of dimensions, or a dimension of size 0.

    >>> detect_layout((16, 32, 32))
    'map'
    """
    layouts: dict[int, Layout] = {1: "vector", 2: "tokens", 3: "map"}
    if len(shape) not in layouts or min(shape) < 1:
        raise OptionError(
            f"a stage's output has shape {tuple(shape)} without the batch; wanted is a map "
            "(C, H, W), tokens (T, D) or a vector (D,), none of them empty; cut elsewhere"
        )
    return layouts[len(shape)]


DeferredLoss = Callable[[tuple[Tensor | None, ...]], Tensor]
"""Returns the loss of a signal's network, a scalar, given the target that came back."""


@dataclass(frozen=True)
class StageShapes:
    """Shapes, without the batch, that the network of a stage's signal is built for.

    Attributes:
        output: Shape of the stage's output.
        prediction: Shape of the network's output; None if that is not one tensor of floating
            point numbers.
        later: Shape of the output of each later layer that has weights, except the last layer
            of the network, which predicts.
        before: Number of layers with weights in front of the last one of the stage.
        place: Place of the stage among all but the last one, from 0 to 1.
        network_input: Shape of the network's input; empty if that is not one tensor of floating
            point numbers.
    """

    output: tuple[int, ...]
    prediction: tuple[int, ...] | None
    later: tuple[tuple[int, ...], ...] = ()
    before: int = 0
    place: float = 0.0
    network_input: tuple[int, ...] = ()


def place_of_stage(stage: int, stages: int) -> float:
    """Return the place of a stage among all but the last one, from 0 to 1.

    >>> [place_of_stage(stage, stages=4) for stage in range(3)]
    [0.0, 0.5, 1.0]
    """
    return stage / max(stages - 2, 1)


@dataclass(frozen=True)
class SignalInput:
    """Values that a signal may compute the error of one batch from.

    Attributes:
        output: Output of the stage with its graph, tensors of shape (B, ...).
        targets: Targets of the batch, (B, ...).
        received: Gradient that came back for each tensor of the output, of the same shape; None
            if none came back. Gradients that may cross different numbers of further edges
            follow each other, the farthest first.
        loss: Loss of the network.
        stage: Number of the stage, from 0.
        stages: Number of stages.
        network_input: Input of the network, (B, ...), if the signal needs it.
    """

    output: Tree
    targets: Tree
    received: tuple[Tensor | None, ...]
    loss: Loss
    stage: int
    stages: int
    network_input: Tree = None


@dataclass(frozen=True)
class BackwardRoots:
    """Roots of a stage's backward, and the gradients along which they are differentiated.

    Attributes:
        roots: Tensors with a graph.
        gradients: Gradient of each root, of the same shape; None means 1, and needs a scalar
            root.
        loss: Loss that the stage computed, a detached scalar; None if it computed none.
        deferred: Loss of a network that learns from the target that comes back later.
        crossings: Edges that the gradient of each root may still cross on its way back; empty
            if all of them cross the next one together.
    """

    roots: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    loss: Tensor | None = None
    deferred: DeferredLoss | None = None
    crossings: tuple[int, ...] = ()

    @staticmethod
    def of_loss(loss: Tensor) -> "BackwardRoots":
        """Build the only root of a stage that learns from a loss alone, a scalar."""
        return BackwardRoots((loss,), (None,), loss.detach())

    def without_nan(self) -> "BackwardRoots":
        """Return the same roots with 0 for a loss that is NaN, as a mean over no targets is."""
        pairs = zip(self.roots, self.gradients, strict=True)
        roots = [r.masked_fill(r.isnan(), 0) if g is None else r for r, g in pairs]
        loss = None if self.loss is None else self.loss.masked_fill(self.loss.isnan(), 0)
        return replace(self, roots=tuple(roots), loss=loss)

    def by_crossings(self) -> Iterator[tuple["BackwardRoots", bool]]:
        """Yield the roots to differentiate together, the farthest first.

        With them comes True if their gradients cross the edge to the stage before.
        """
        if len(set(self.crossings)) < 2:
            yield self, self.crossings[:1] != (0,)
            return
        triples = list(zip(self.roots, self.gradients, self.crossings, strict=True))
        for number in sorted(set(self.crossings), reverse=True):
            roots, gradients, _ = zip(*[t for t in triples if t[2] == number], strict=True)
            yield replace(self, roots=roots, gradients=gradients, crossings=()), number > 0


class Signal(ABC):
    """Source of a stage's error. Signals are stateless values; weights live in a network.

    Attributes:
        needs_gradient: True if a backward needs the gradient that comes back over the edge.
        learns_from_gradient: True if the gradient that comes back over the edge is a target to
            learn from.
        computes: True if it computes an error from the output of the stage, one tensor; False
            if it only passes on what has come back.
        reach: Edges that the gradient of a stage's own loss crosses; 0 if there is no limit, or
            if no gradient comes back.
    """

    needs_gradient = False
    learns_from_gradient = False
    computes = True
    reach = 0

    @property
    def expects_answer(self) -> bool:
        """True if a gradient or a target comes back for every output."""
        return self.needs_gradient or self.learns_from_gradient

    @property
    def needs_input(self) -> bool:
        """True if the error depends on the input of the network."""
        return False

    def build_network(self, shapes: StageShapes) -> nn.Module:
        """Build the signal's network; an identity if there is nothing to train."""
        return nn.Identity()

    def may_draw(self, loss: Loss) -> bool:
        """Return True if anything but the layers of the network may draw random numbers."""
        is_known = type(self).__module__.startswith("hocket.")
        return not is_known or (self.computes and may_draw(loss))

    @abstractmethod
    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the roots of a stage's backward for one batch."""

    def predict(self, network: nn.Module, output: Tree) -> Tensor | None:
        """Return the prediction of the targets, (B, ...); None if the signal predicts none."""
        return None
