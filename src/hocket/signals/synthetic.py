"""Signal of a gradient that a small network predicts from the stage's output."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hocket.errors import OptionError, format_problems
from hocket.options.hints import wrong_fields
from hocket.signals.losses import Loss
from hocket.signals.signal import UNKNOWN_LAYERS, BackwardRoots, LaterLayers, SignalInput
from hocket.signals.synthesizers import build_synthesizer
from hocket.signals.targets import label_error
from hocket.tree import Tree, tensors


@dataclass(frozen=True)
class Synthetic:
    """Gradient s = M(h) that a synthesizer M predicts (DNI, arXiv 1608.05343, section 2.1).

    M learns from the gradient g that the next stage computes for the same output h: its loss is
    |M(h) - g|^2, summed over features and averaged over the batch.

    Attributes:
        labels: Let the synthesizer see the targets as well (cDNI).

    Raises:
        OptionError: ``labels`` is no bool.
    """

    labels: bool = False

    def __post_init__(self) -> None:
        if problems := wrong_fields(self):
            raise OptionError(format_problems("a synthesizer cannot be built", problems))

    needs_gradient = False
    learns_from_gradient = True

    def build_network(
        self,
        shape: tuple[int, ...],
        output_shape: tuple[int, ...] | None,
        later: LaterLayers = UNKNOWN_LAYERS,
    ) -> nn.Module:
        """Build the synthesizer; its last layer starts at zero, so the stage starts frozen.

        See the protocol.

        Raises:
            OptionError: It is to see labels, and the network does not predict classes.
        """
        if self.labels and not output_shape:
            raise OptionError(
                "labels=True shows class indices to the synthesizer, and the network's output "
                "is not one tensor of class scores; leave labels at False"
            )
        classes = output_shape[-1] if self.labels and output_shape else None
        return build_synthesizer(shape, classes)

    def may_draw(self, loss: Loss) -> bool:
        """Return False: nothing is computed but by the network."""
        return False

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the output, its predicted gradient, and the synthesizer's deferred loss."""
        (root,) = tensors(inputs.output)
        detached = root.detach()
        labels = inputs.targets if self.labels else None

        def predict() -> Tensor:
            try:
                prediction: Tensor = network(detached, labels)
            except IndexError as error:
                raise label_error(error, detached) from error
            return prediction

        def deferred_loss(target: tuple[Tensor | None, ...]) -> Tensor:
            # Predicted again: the synthesizer may have learned from other batches since then.
            # None: the next stage does not use the output, so its gradient is zero.
            gradient = torch.zeros_like(detached) if target[0] is None else target[0]
            return (predict() - gradient).square().sum() / len(gradient)

        return BackwardRoots((root,), (predict().detach(),), deferred=deferred_loss)

    def predict(self, network: nn.Module, output: Tree) -> Tensor | None:
        """Return None: the synthesizer predicts gradients, not targets."""
        return None
