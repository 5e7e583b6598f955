"""A gradient that a small network predicts from the stage's output."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hocket.losses import Loss
from hocket.signals.signal import BackwardRoots
from hocket.signals.synthesizers import build_synthesizer
from hocket.signals.targets import checked_targets
from hocket.tree import Tree, tensors


@dataclass(frozen=True)
class Synthetic:
    """Differentiate along a predicted gradient (DNI, arXiv 1608.05343, section 2.1).

    The prediction is mended by the gradient that the next stage finds for the same output:
    squared error, summed over features and averaged over the batch.

    Attributes:
        labels: Whether the prediction also sees the targets (cDNI).
    """

    labels: bool = False

    needs_gradient = False
    learns_from_gradient = True

    def network(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The synthesizer; its last layer starts at zero, so the stage starts frozen."""
        return build_synthesizer(shape, outputs if self.labels else None)

    def backward_roots(
        self,
        network: nn.Module,
        loss: Loss,
        output: Tree,
        targets: Tree,
        received: tuple[Tensor | None, ...],
    ) -> BackwardRoots:
        """The output with its predicted gradient, and the lesson for when the target comes."""
        (root,) = tensors(output)
        seen = root.detach()

        def predict() -> Tensor:
            with checked_targets(output):
                prediction: Tensor = network(seen, targets if self.labels else None)
            return prediction

        def lesson(target: tuple[Tensor | None, ...]) -> Tensor:
            # Predicted again: the synthesizer may have learnt since from other batches.
            # None: the next stage does not use the output, so its gradient is zero.
            true = torch.zeros_like(seen) if target[0] is None else target[0]
            return (predict() - true).square().sum() / len(true)

        return BackwardRoots((root,), (predict().detach(),), deferred=lesson)

    def predict(self, network: nn.Module, output: Tree) -> Tensor | None:
        """Nothing: it sees gradients, not targets."""
        return None
