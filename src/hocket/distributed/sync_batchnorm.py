"""BatchNorm whose statistics are those of the batch of all replicas of a stage.

torch.nn.SyncBatchNorm does this on GPUs only. Here the two sums are made by differentiable
collectives, so that forward and backward are those of the whole batch on any device.
"""

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hocket.distributed.world import World

# Shapes: B batch, C channels, and any number of further dimensions.


class _Sum(torch.autograd.Function):
    """The sum over the replicas; what they all use gets the sum of what they all send back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, world: World) -> Tensor:
        ctx.world = world
        return _summed(tensor, world)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return _summed(gradients[0], ctx.world), None


def _summed(tensor: Tensor, world: World) -> Tensor:
    total = tensor.detach().clone()
    with world.collective("adding up statistics with the other replicas"):
        distributed.all_reduce(total, group=world.siblings)
    return total


class SyncBatchNorm(_BatchNorm):
    """A BatchNorm layer over the replicas; parameters, buffers and names are the layer's.

    Args:
        layer: The layer that it stands for.
        world: This process among the others.
    """

    def __init__(self, layer: _BatchNorm, world: World) -> None:
        super().__init__(
            layer.num_features,
            layer.eps,
            layer.momentum,
            layer.affine,
            layer.track_running_stats,
        )
        self.weight, self.bias = layer.weight, layer.bias
        for name, buffer in layer.named_buffers():
            self.register_buffer(name, buffer)
        self._world = world
        self.train(layer.training)

    def _check_input_dim(self, input: Tensor) -> None:
        """Any shape with channels in dimension 1."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (B, C, ...) by the statistics of the whole batch, or the running ones."""
        if not self.training:
            return super().forward(input)
        dims = [d for d in range(input.dim()) if d != 1]
        own = input.numel() // input.shape[1]
        count_1 = float(_summed(torch.tensor([own], dtype=torch.float64), self._world))
        shape = [1, -1] + [1] * (input.dim() - 2)
        mean_C = _sum(input.sum(dims), self._world) / count_1
        centred = input - mean_C.view(shape)
        variance_C = _sum(centred.square().sum(dims), self._world) / count_1
        if self.track_running_stats:
            self._follow(mean_C.detach(), variance_C.detach() * (count_1 / (count_1 - 1)))
        output = centred * (variance_C + self.eps).rsqrt().view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output

    @torch.no_grad()
    def _follow(self, mean_C: Tensor, variance_C: Tensor) -> None:
        """Let the running statistics follow, as BatchNorm does."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1 / float(self.num_batches_tracked)
        for running, new in ((self.running_mean, mean_C), (self.running_var, variance_C)):
            assert running is not None
            running.mul_(1 - momentum).add_(new.to(running.dtype), alpha=momentum)


def _sum(tensor: Tensor, world: World) -> Tensor:
    total: Tensor = _Sum.apply(tensor, world)  # type: ignore[no-untyped-call]
    return total


def convert_batchnorm(module: nn.Module, world: World) -> None:
    """Put such a layer in the place of every BatchNorm inside a module."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm) and not isinstance(child, SyncBatchNorm):
                setattr(parent, name, SyncBatchNorm(child, world))
