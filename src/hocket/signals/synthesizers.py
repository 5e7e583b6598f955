"""Synthesizers: networks that guess the gradient at a stage's output before it comes back.

Sources: Jaderberg et al., Decoupled neural interfaces using synthetic gradients, ICML 2017,
arXiv 1608.05343, appendix; the sizes are those of the CIFAR comparison in the public code of
Belilovsky et al., arXiv 1901.08164. That code zeroes the last weight but leaves the last bias
non-zero, so that its first gradients are noise. Here both are zero: a stage starts frozen.
"""

# Shapes: B batch, C channels, H W sides of a map, T tokens, D features, S hidden features.

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from hocket.errors import DataError, OptionError
from hocket.signals.layout import Layout, detect_layout

HIDDEN = 128


@final
class Synthesizer(nn.Module):
    """Gradient guessed from a stage's output, and from its targets too if it is conditional.

    A target enters as a vector that is added to the first hidden layer: at every pixel of a map
    alike, and at each token that token's own.
    """

    def __init__(self, layout: Layout, features: int, classes: int | None) -> None:
        super().__init__()
        self.layout = layout
        self.entry = _linear(layout, features, HIDDEN)
        self.target = None if classes is None else nn.Linear(classes, HIDDEN)
        self.hidden = nn.Sequential(
            _norm(layout), nn.ReLU(), _linear(layout, HIDDEN, HIDDEN), _norm(layout), nn.ReLU()
        )
        self.guess = _linear(layout, HIDDEN, features)
        for parameter in self.guess.parameters():
            nn.init.zeros_(parameter)

    def forward(self, output: Tensor, targets: Tensor | None) -> Tensor:
        """Synthetic gradient, of the shape of `output`.

        Args:
            output: What the stage sent on: (B, C, H, W), (B, T, D) or (B, D).
            targets: Class indices, (B,), of tokens (B, T). Not read unless conditional.

        Raises:
            DataError: A conditional synthesizer got no targets, or too few or many.
        """
        entered = self.entry(output)
        if self.target is not None:
            entered = entered + self._conditions(self.target, output, targets)
        gradient: Tensor = self.guess(self.hidden(entered))
        return gradient

    def _conditions(self, target: nn.Linear, output: Tensor, targets: Tensor | None) -> Tensor:
        """What the targets add to the first hidden layer; it broadcasts over the pixels."""
        wanted = output.shape[: 2 if self.layout == "tokens" else 1]
        if targets is None or targets.shape != wanted:
            got = "none" if targets is None else f"targets of shape {tuple(targets.shape)}"
            raise DataError(
                f"a conditional synthesizer at an output of shape {tuple(output.shape)} got "
                f"{got}, wanted class indices of shape {tuple(wanted)}; "
                "build it with classes=None if there are none"
            )
        # A linear layer on one-hot targets takes columns of its weight; so none are made.
        conditions_BS = F.embedding(targets, target.weight.t()) + target.bias
        return conditions_BS[:, :, None, None] if self.layout == "map" else conditions_BS


def build_synthesizer(shape: Sequence[int], classes: int | None) -> Synthesizer:
    """Synthesizer for a stage: two hidden layers of 128, on maps 5x5 convolutions.

    Args:
        shape: The stage's output without the batch: (C, H, W), (T, D) or (D,).
        classes: Number of classes to condition on the targets (cDNI), None not to (DNI).

    Raises:
        OptionError: The shape is none of these, or there are no classes.

    >>> import torch
    >>> build_synthesizer((3,), classes=None)(torch.ones(2, 3), None).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    if classes is not None and classes < 1:
        raise OptionError(f"classes is {classes}; give at least 1, or None for no condition")
    layout = detect_layout(shape)
    features = shape[0] if layout == "map" else shape[-1]
    return Synthesizer(layout, features, classes)


def _linear(layout: Layout, inputs: int, outputs: int) -> nn.Module:
    """5x5 convolution that keeps the sides, or a linear layer."""
    if layout == "map":
        return nn.Conv2d(inputs, outputs, 5, padding=2)
    return nn.Linear(inputs, outputs)


def _norm(layout: Layout) -> nn.Module:
    """BatchNorm over a batch of maps or vectors, LayerNorm over each token."""
    if layout == "map":
        return nn.BatchNorm2d(HIDDEN)
    return nn.BatchNorm1d(HIDDEN) if layout == "vector" else nn.LayerNorm(HIDDEN)
