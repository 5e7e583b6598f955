"""A local loss that also asks whether samples of one class look alike."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from hocket.errors import OptionError
from hocket.losses import Loss
from hocket.signals.local import Local
from hocket.signals.matching import build_matching
from hocket.signals.signal import BackwardRoots
from hocket.tree import Tree


@dataclass(frozen=True)
class Similarity:
    """The loss of a head and similarity matching: ``(1 - weight) L_pred + weight L_sim``.

    The local loss L_predsim of Nøkland and Eidnes, ICML 2019, arXiv 1901.06656. Each pair of
    samples in a batch is compared, so L_sim is of batches and no mean over samples.

    Attributes:
        weight: The part of similarity matching, above 0 and below 1; 0.99 in the paper.
        prediction: The loss of the head.

    Raises:
        OptionError: The weight is out of range.
    """

    weight: float = 0.99
    prediction: Local = field(default_factory=Local)

    needs_gradient = False
    learns_from_gradient = False

    def __post_init__(self) -> None:
        if not 0 < self.weight < 1:
            raise OptionError(
                f"similarity is {self.weight!r}; use a number in (0, 1), or 0 to leave it off"
            )

    def network(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The head, and what compares samples; both train with the stage."""
        # The head is drawn first, so that it starts as it would alone.
        return nn.ModuleDict(
            {
                "head": self.prediction.network(shape, outputs),
                "matching": build_matching(shape, outputs),
            }
        )

    def backward_roots(
        self,
        network: nn.Module,
        loss: Loss,
        output: Tree,
        targets: Tree,
        received: tuple[Tensor | None, ...],
    ) -> BackwardRoots:
        """Both losses, weighted and added up.

        Raises:
            DataError: The targets are not a class number for each sample.
        """
        head, matching = map(network.get_submodule, ("head", "matching"))
        matched = matching(output, targets)
        (predicted,) = self.prediction.backward_roots(
            head, loss, output, targets, received
        ).roots
        value = (1 - self.weight) * predicted + self.weight * matched
        return BackwardRoots((value,), (None,), value.detach())

    def predict(self, network: nn.Module, output: Tree) -> Tensor:
        """The head's prediction."""
        return self.prediction.predict(network.get_submodule("head"), output)
