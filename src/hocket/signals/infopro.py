"""InfoPro: a stage also keeps what a decoder needs to reconstruct the input of the network.

Source: Wang et al., Revisiting locally supervised learning, ICLR 2021, arXiv 2101.10832. The
decoder and the weights of its first and last stage follow the authors' code, which compares
images scaled to [0, 1] by their cross-entropy; here the input is compared as the network gets
it, by its squared error. Plain version: ``tests/reference/infopro.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn import functional as F

from hocket.errors import OptionError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.signals.local import Local
from hocket.signals.signal import (
    BackwardRoots,
    Signal,
    SignalInput,
    StageShapes,
    place_of_stage,
)
from hocket.tree import Tree

CHANNELS = 12
"""Channels between the two convolutions of a decoder."""


def build_decoder(shape: Sequence[int], input_shape: Sequence[int]) -> nn.Sequential:
    """Build a decoder from a stage's output to the input of the network.

    Args:
        shape: Shape of the stage's output without the batch, (C, H, W).
        input_shape: Shape of the input without the batch, (C, H, W).

    Raises:
        OptionError: One of them is no map.

    >>> import torch
    >>> build_decoder((8, 4, 4), (3, 6, 6))(torch.zeros(2, 8, 4, 4)).shape
    torch.Size([2, 3, 6, 6])
    """
    if len(shape) != 3 or len(input_shape) != 3:
        raise OptionError(
            "infopro reconstructs the input of the network, and both it and a stage's output "
            f"have to be maps (C, H, W); they are {tuple(input_shape)} and {tuple(shape)} "
            "without the batch; leave infopro out"
        )
    return nn.Sequential(
        nn.Upsample(tuple(input_shape[1:]), mode="bilinear", align_corners=True),
        nn.Conv2d(shape[0], CHANNELS, 3, padding=1),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, input_shape[0], 3, padding=1),
    )


@dataclass(frozen=True)
class InfoPro(Signal):
    """Loss ``l1 |decoder(h) - x|^2 + l2 L(head(h), y)`` of an input x and an output h.

    The square is a mean over all numbers. The weights of stages between the first and the last
    one with such a loss are interpolated linearly.

    Attributes:
        weights: l1 and l2 of the first stage, then of the last stage with such a loss; two
            numbers are for all stages.
        prediction: Signal of the head.

    Raises:
        OptionError: There are not two or four weights, one is negative, or both of a stage are
            0.
    """

    weights: tuple[float, ...]
    prediction: Local = field(default_factory=Local)

    def __post_init__(self) -> None:
        problems = wrong_fields(self)
        if not problems and (
            len(self.weights) not in (2, 4)
            or min(self.weights) < 0
            or not (any(self.weights[:2]) and any(self.weights[-2:]))
        ):
            problems.append(
                f"infopro is {list(self.weights)!r}; give two numbers from 0 on, not both 0: "
                "weights of reconstruction and prediction; or four, of the first stage and of "
                "the last one with a head"
            )
        raise_problems(OptionError, "a local loss cannot be built", problems)

    needs_input = True  # which is reconstructed

    def build_network(self, shapes: StageShapes) -> nn.Module:
        """Build the head and the decoder, which train with the stage; see the base."""
        # The head draws random numbers first, so that it starts as it would alone.
        head = self.prediction.build_network(shapes)
        decoder = build_decoder(shapes.output, shapes.network_input)
        return nn.ModuleDict({"head": head, "decoder": decoder})

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the weighted sum of both losses."""
        head, decoder = map(network.get_submodule, ("head", "decoder"))
        (head_loss,) = self.prediction.backward_roots(head, inputs).roots
        reconstruction = F.mse_loss(decoder(inputs.output), inputs.network_input)
        place = place_of_stage(inputs.stage, inputs.stages)
        first, last = self.weights[:2], self.weights[-2:]
        of_input, of_targets = (
            a * (1 - place) + b * place for a, b in zip(first, last, strict=True)
        )
        value = of_input * reconstruction + of_targets * head_loss
        return BackwardRoots.of_loss(value)

    def predict(self, network: nn.Module, output: Tree) -> Tensor:
        """Return the head's prediction, (B, O) of O outputs."""
        return self.prediction.predict(network.get_submodule("head"), output)
