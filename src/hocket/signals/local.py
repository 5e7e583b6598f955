"""A loss that a stage can take by itself: the network's own, or that of an auxiliary head."""

from dataclasses import dataclass

from torch import Tensor, nn

from hocket.method import Error, Loss
from hocket.signals.heads import HeadKind, build_head
from hocket.signals.targets import fitting
from hocket.tree import Tree


def _loss_error(loss: Loss, predictions: Tree, targets: Tree) -> Error:
    with fitting(predictions):
        value = loss(predictions, targets)
    return Error((value,), (None,), value.detach())


@dataclass(frozen=True)
class Objective:
    """The network's own loss, taken of the stage's output: the signal of every last stage."""

    waits = False
    learns = False

    def network(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Nothing to train: the output is the prediction."""
        return nn.Identity()

    def error(
        self,
        network: nn.Module,
        loss: Loss,
        output: Tree,
        targets: Tree,
        received: tuple[Tensor | None, ...],
    ) -> Error:
        """The loss of the output."""
        return _loss_error(loss, output, targets)


@dataclass(frozen=True)
class Local:
    """The loss of an auxiliary head on the stage's output (DGL, arXiv 1901.08164, algorithm 1).

    Attributes:
        head: Which auxiliary network: ``mlp-sr``, ``mlp`` or ``cnn``.
    """

    head: HeadKind = "mlp-sr"

    waits = False
    learns = False

    def network(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The head; it trains with the stage and is dropped afterwards."""
        return build_head(self.head, shape, outputs)

    def error(
        self,
        network: nn.Module,
        loss: Loss,
        output: Tree,
        targets: Tree,
        received: tuple[Tensor | None, ...],
    ) -> Error:
        """The loss of the head's prediction."""
        return _loss_error(loss, network(output), targets)
