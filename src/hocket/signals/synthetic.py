"""Signal of a gradient that a small network, the synthesizer, predicts from a stage's output.

Sources: Jaderberg et al., Decoupled neural interfaces using synthetic gradients, ICML 2017,
arXiv 1608.05343, appendix; the sizes are from the CIFAR comparison in the public code of
Belilovsky et al., arXiv 1901.08164. That code zeroes the last weight but leaves the last bias
non-zero, so that its first gradients are noise. Here both are zero: a stage starts frozen.
"""

# Shapes: B batch, C channels, H W sides of a map, T tokens, D features, S hidden features.

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hocket.errors import DataError, OptionError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.signals.losses import IGNORED, Loss, describe, label_error
from hocket.signals.signal import (
    BackwardRoots,
    Layout,
    Signal,
    SignalInput,
    StageShapes,
    detect_layout,
)
from hocket.tree import tensors

HIDDEN = 128


@final
class Synthesizer(nn.Module):
    """Network that predicts the gradient of a stage's output, maybe from targets as well.

    It has two hidden layers of 128 units, 5x5 convolutions on maps. A target enters as a vector
    that is added to the first: the same vector at every pixel of a map, and at each token the
    vector of that token's target.

    Args:
        shape: Shape of the stage's output without the batch: (C, H, W), (T, D) or (D,).
        classes: Number of classes to condition on the targets (cDNI); None without (DNI).

    Raises:
        OptionError: The shape is none of these.

    >>> Synthesizer((3,), classes=None)(torch.ones(2, 3), None).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, shape: Sequence[int], classes: int | None) -> None:
        super().__init__()
        self.layout = layout = detect_layout(shape)
        features = shape[0] if layout == "map" else shape[-1]
        self.entry = _linear(layout, features, HIDDEN)
        self.target = None if classes is None else nn.Linear(classes, HIDDEN)
        self.hidden = nn.Sequential(
            _norm(layout), nn.ReLU(), _linear(layout, HIDDEN, HIDDEN), _norm(layout), nn.ReLU()
        )
        self.guess = _linear(layout, HIDDEN, features)
        for parameter in self.guess.parameters():
            nn.init.zeros_(parameter)

    def forward(self, output: Tensor, targets: Tensor | None) -> Tensor:
        """Return the synthetic gradient, of the shape of ``output``.

        Args:
            output: Output of the stage: (B, C, H, W), (B, T, D) or (B, D).
            targets: Class indices, (B,), or (B, T) of tokens; ignored unless conditional.

        Raises:
            DataError: A conditional synthesizer got no class indices, or too few or many.
        """
        hidden = self.entry(output)
        if self.target is not None:
            wanted_shape = output.shape[: 2 if self.layout == "tokens" else 1]
            if (
                not isinstance(targets, Tensor)
                or targets.is_floating_point()
                or targets.shape != wanted_shape
            ):
                raise DataError(
                    f"a conditional synthesizer at an output of shape {tuple(output.shape)} "
                    f"got targets {describe(targets)}, wanted class indices of shape "
                    f"{tuple(wanted_shape)}, whole numbers; build it with classes=None if "
                    "there are none"
                )
            # A linear layer on one-hot targets selects columns of its weight.
            targets = targets.long()  # which PyTorch's embedding and comparison ask for
            ignored = targets == IGNORED  # the loss leaves them out: no condition
            columns = F.embedding(targets.masked_fill(ignored, 0), self.target.weight.t())
            conditions_BS = columns.masked_fill(ignored.unsqueeze(-1), 0.0) + self.target.bias
            is_map = self.layout == "map"  # over whose pixels they broadcast
            hidden = hidden + (conditions_BS[:, :, None, None] if is_map else conditions_BS)
        gradient: Tensor = self.guess(self.hidden(hidden))
        return gradient


def _linear(layout: Layout, inputs: int, outputs: int) -> nn.Module:
    """Build a 5x5 convolution that keeps the shape, or a linear layer."""
    if layout == "map":
        return nn.Conv2d(inputs, outputs, 5, padding=2)
    return nn.Linear(inputs, outputs)


def _norm(layout: Layout) -> nn.Module:
    """Build BatchNorm for maps or vectors, LayerNorm for tokens."""
    if layout == "map":
        return nn.BatchNorm2d(HIDDEN)
    return nn.BatchNorm1d(HIDDEN) if layout == "vector" else nn.LayerNorm(HIDDEN)


@dataclass(frozen=True)
class Synthetic(Signal):
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
        raise_problems(OptionError, "a synthesizer cannot be built", wrong_fields(self))

    learns_from_gradient = True

    def build_network(self, shapes: StageShapes) -> nn.Module:
        """Build the synthesizer, with zeros in its last layer; see the base.

        Raises:
            OptionError: It is to see labels, and the network does not predict classes.
        """
        if self.labels and not shapes.prediction:
            raise OptionError(
                "labels=True shows class indices to the synthesizer, and the network's output "
                "is not one tensor of class scores; leave labels at False"
            )
        classes = shapes.prediction[-1] if self.labels and shapes.prediction else None
        return Synthesizer(shapes.output, classes)

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
