"""Tensors as gloo sends them, and stages for torch.distributed.pipelining, which send no views.

gloo sends contiguous tensors only, so a channels_last map is sent as the (B, H, W, C) tensor
that it is in memory. torch.distributed.pipelining detaches the output of a stage in place,
which PyTorch refuses for views. Neither conversion copies.
"""

# Shapes: B batch, C channels, H W sides of a map.

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hocket.modes import evaluation_mode

TO_WIRE = (0, 2, 3, 1)
FROM_WIRE = (0, 3, 1, 2)
Convert = Callable[[Tensor], Tensor]


class WireStage(nn.Module):
    """A stage whose inputs and outputs have the form in which they are sent.

    Args:
        layers: The stage.
        first: Whether its input is the batch, which is not received.
        last: Whether its output goes to the loss, and is not sent.
        channels_last: Whether maps are in the channels-last memory format.
    """

    def __init__(
        self, layers: nn.Module, *, first: bool, last: bool, channels_last: bool
    ) -> None:
        super().__init__()
        self.layers = layers
        self.first = first
        self.last = last
        self.channels_last = channels_last

    def forward(self, value: Tensor) -> Tensor:
        """Return the output (B, ...) of an input (B, ...), both in the form to be sent."""
        received = partial(from_wire, channels_last=self.channels_last)
        to_send = partial(to_wire, channels_last=self.channels_last)
        convert: Callable[..., Tensor] = _Converted.apply
        if not self.first:
            value = convert(value, received, to_send)
        value = self.layers(value)
        return value if self.last else convert(value, to_send, received)


def to_wire(value: Tensor, *, channels_last: bool) -> Tensor:
    """Return a contiguous tensor (B, ...) with the same values, without a copy if possible."""
    if channels_last and value.dim() == 4:
        value = value.permute(TO_WIRE)
    return value.contiguous()


def from_wire(value: Tensor, *, channels_last: bool) -> Tensor:
    """Return the tensor (B, ...) that was sent as this one, without a copy."""
    return value.permute(FROM_WIRE) if channels_last and value.dim() == 4 else value


@torch.no_grad()
def example_tensors(
    stages: Sequence[nn.Module], sample: Tensor, *, channels_last: bool
) -> list[Tensor]:
    """Return the input of the first stage and the output of each stage, as they are sent.

    Args:
        stages: The stages, which stay as they are.
        sample: Inputs (B, ...) of the first one.
        channels_last: Maps are in the channels-last memory format.
    """
    wires = [sample]
    value = sample
    for stage in stages:
        with evaluation_mode(stage):
            value = stage(value)
        wires.append(to_wire(value, channels_last=channels_last).requires_grad_())
    return wires


class _Converted(torch.autograd.Function):
    """Conversion of a tensor, whose gradient is converted back."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, convert: Convert, convert_back: Convert) -> Tensor:
        ctx.convert_back = convert_back
        # .data shares memory but is no view for autograd, so that it can be detached.
        return convert(value).data

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.convert_back(gradients[0]), None, None
