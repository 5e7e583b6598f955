"""Signal of a local loss with similarity matching of the samples of one class."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from hocket.errors import OptionError
from hocket.options.hints import wrong_fields
from hocket.signals.local import Local
from hocket.signals.losses import Loss, may_draw
from hocket.signals.matching import build_matching
from hocket.signals.signal import UNKNOWN_LAYERS, BackwardRoots, LaterLayers, SignalInput
from hocket.tree import Tree


@dataclass(frozen=True)
class Similarity:
    """Loss of a head and similarity matching: ``(1 - weight) L_pred + weight L_sim``.

    The local loss L_predsim of Nøkland and Eidnes, ICML 2019, arXiv 1901.06656. Each pair of
    samples in a batch is compared, so L_sim depends on the batch and is no mean over samples.

    Attributes:
        weight: Weight of similarity matching, above 0 and below 1; 0.99 in the paper.
        prediction: Signal of the head.

    Raises:
        OptionError: The weight is out of range.
    """

    weight: float = 0.99
    prediction: Local = field(default_factory=Local)

    needs_gradient = False
    learns_from_gradient = False

    def __post_init__(self) -> None:
        if wrong_fields(self) or not 0 < self.weight < 1:
            raise OptionError(
                f"similarity is {self.weight!r}; use a number in (0, 1), or 0 to leave it off"
            )

    def build_network(
        self,
        shape: tuple[int, ...],
        output_shape: tuple[int, ...] | None,
        later: LaterLayers = UNKNOWN_LAYERS,
    ) -> nn.Module:
        """Build the head and the layer that compares samples; both train with the stage.

        See the protocol.
        """
        # The head draws random numbers first, so that it starts as it would alone.
        head = self.prediction.build_network(shape, output_shape, later)
        matching = build_matching(shape, output_shape[-1] if output_shape else 1)
        return nn.ModuleDict({"head": head, "matching": matching})

    def may_draw(self, loss: Loss) -> bool:
        """Return True if the loss may draw random numbers."""
        return may_draw(loss)

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the weighted sum of both losses.

        Raises:
            DataError: The targets are not a class index for each sample.
        """
        head, matching = map(network.get_submodule, ("head", "matching"))
        matching_loss = matching(inputs.output, inputs.targets)
        (head_loss,) = self.prediction.backward_roots(head, inputs).roots
        value = (1 - self.weight) * head_loss + self.weight * matching_loss
        return BackwardRoots((value,), (None,), value.detach())

    def predict(self, network: nn.Module, output: Tree) -> Tensor:
        """Return the head's prediction, (B, O) of O outputs."""
        return self.prediction.predict(network.get_submodule("head"), output)
