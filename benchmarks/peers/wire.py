"""A stage whose tensors can go over the wire: contiguous, and no views of others.

gloo sends contiguous tensors only, so a channels_last map travels as the (B, H, W, C) tensor
that it is in memory. torch.distributed.pipelining detaches what a stage gives in place, which
PyTorch refuses for views. Neither costs a copy here.
"""

# Shapes: B batch, C channels, H W sides of a map.

from typing import Any, cast

import torch
from torch import Tensor, nn

TO_WIRE = (0, 2, 3, 1)
FROM_WIRE = (0, 3, 1, 2)


class Wired(nn.Module):
    """Layers that take and give tensors as they travel.

    Args:
        layers: The stage.
        first: Whether its input is the batch, which has not travelled.
        last: Whether its output is for the loss, and does not travel.
        channels_last: Whether maps are.
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
        """From what has come to what shall go."""
        if not self.first:
            value = _applied(_Arrived, value, self.channels_last)
        value = self.layers(value)
        return value if self.last else _applied(_Sent, value, self.channels_last)


def on_wire(value: Tensor, *, channels_last: bool) -> Tensor:
    """The contiguous tensor that stands for this one; a view of it where that is possible."""
    if channels_last and value.dim() == 4:
        value = value.permute(TO_WIRE)
    return value.contiguous()


class _Arrived(torch.autograd.Function):
    """Wire to layer; its gradient goes back over the wire."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, channels_last: bool) -> Tensor:
        ctx.channels_last = channels_last
        return value.permute(FROM_WIRE) if channels_last and value.dim() == 4 else value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return on_wire(gradients[0], channels_last=ctx.channels_last), None


class _Sent(torch.autograd.Function):
    """Layer to wire; its gradient has come over the wire."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, channels_last: bool) -> Tensor:
        ctx.permuted = channels_last and value.dim() == 4
        # .data shares the memory and is no view to autograd, so that it may be detached.
        return on_wire(value, channels_last=channels_last).data

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].permute(FROM_WIRE) if ctx.permuted else gradients[0], None


def _applied(function: type[torch.autograd.Function], value: Tensor, flag: bool) -> Tensor:
    """The function's output; PyTorch has no types for it."""
    return cast(Tensor, function.apply(value, flag))
