"""The error of a stage: where its backward starts, and the protocol of whatever says so."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from hocket.losses import Loss
from hocket.tree import Tree


@dataclass(frozen=True)
class BackwardRoots:
    """Where a stage's backward starts: ``roots`` are differentiated along ``gradients``.

    Attributes:
        roots: Tensors with a graph.
        gradients: One for each root; None stands for 1 and needs a root of one number.
        loss: The loss that the stage saw, detached, if it saw one.
        deferred: For a signal that learns: the loss of its network, given the target received.
    """

    roots: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    loss: Tensor | None = None
    deferred: "DeferredLoss | None" = None


DeferredLoss = Callable[[tuple[Tensor | None, ...]], Tensor]


class Signal(Protocol):
    """Where a stage's error comes from. Objects are stateless; weights live in ``network``."""

    @property
    def needs_gradient(self) -> bool:
        """Whether a backward needs the gradient that comes back over the edge."""

    @property
    def learns_from_gradient(self) -> bool:
        """Whether what comes back over the edge is a target to learn from."""

    def network(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The signal's own network, for stage outputs of ``shape`` (without the batch)."""

    def backward_roots(
        self,
        network: nn.Module,
        loss: Loss,
        output: Tree,
        targets: Tree,
        received: tuple[Tensor | None, ...],
    ) -> BackwardRoots:
        """The error of a stage's output."""

    def predict(self, network: nn.Module, output: Tree) -> Tensor | None:
        """What the signal predicts from a stage's output by itself; None where it does not."""
