"""BatchNorm with the statistics of the whole batch, over all replicas of a stage.

torch.nn.SyncBatchNorm does this on GPUs only. Here two differentiable all-reduces make forward
and backward equal to those of the whole batch on any device.
"""

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hocket.distributed.world import World

# Shapes: B batch, C channels, and any number of further dimensions.


class _AllReduceSum(torch.autograd.Function):
    """Sum over the replicas; the gradient of its input is the sum of all their gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, world: World) -> Tensor:
        ctx.world = world
        return _all_reduce(tensor, world)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return _all_reduce(gradients[0], ctx.world), None


def _all_reduce(tensor: Tensor, world: World) -> Tensor:
    total = tensor.detach().clone()
    with world.replica_collective("summing statistics over the replicas") as finish:
        finish(distributed.all_reduce(total, group=world.replica_group, async_op=True))
    return total


class SyncBatchNorm(_BatchNorm):
    """BatchNorm over all replicas with the parameters, buffers and names of a given layer.

    Args:
        layer: The layer that it replaces.
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
        self.world = world
        self.layer = [layer]  # in a list, as it is no layer of this one
        self.train(layer.training)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any shape with channels in dimension 1."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (B, C, ...) by the whole batch; by the running statistics in evaluation."""
        if not self.training or self.world.left:
            return super().forward(input)
        dims = [d for d in range(input.dim()) if d != 1]
        local_count = input.numel() // input.shape[1]
        count_1 = float(
            _all_reduce(torch.tensor([local_count], dtype=torch.float64), self.world)
        )
        shape = [1, -1] + [1] * (input.dim() - 2)
        # Inside autocast an input may have few bits, and BatchNorm's sums have not.
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        mean_C = _differentiable_sum(wide.sum(dims), self.world) / count_1
        centred = wide - mean_C.view(shape)
        variance_C = _differentiable_sum(centred.square().sum(dims), self.world) / count_1
        if self.track_running_stats:
            self._update_running_statistics(
                mean_C.detach(), variance_C.detach() * (count_1 / (count_1 - 1))
            )
        output = centred * (variance_C + self.eps).rsqrt().view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(input.dtype)

    @torch.no_grad()
    def _update_running_statistics(self, mean_C: Tensor, variance_C: Tensor) -> None:
        """Update the running statistics as BatchNorm does."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1 / float(self.num_batches_tracked)
        for running, new in ((self.running_mean, mean_C), (self.running_var, variance_C)):
            assert running is not None
            running.mul_(1 - momentum).add_(new.to(running.dtype), alpha=momentum)


def _differentiable_sum(tensor: Tensor, world: World) -> Tensor:
    total: Tensor = _AllReduceSum.apply(tensor, world)  # type: ignore[no-untyped-call]
    return total


def convert_batchnorm(module: nn.Module, world: World) -> list[tuple[nn.Module, nn.Module]]:
    """Replace every BatchNorm inside a module by a SyncBatchNorm.

    Args:
        module: The module.
        world: This process among its replicas.

    Returns:
        Each layer that was replaced, and what has its place.
    """
    replaced: list[tuple[nn.Module, nn.Module]] = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, SyncBatchNorm):
                child.world = world  # of an earlier training, which was not closed
            elif isinstance(child, _BatchNorm):
                replaced.append((child, SyncBatchNorm(child, world)))
                setattr(parent, name, replaced[-1][1])
    return replaced


def restore_batchnorm(module: nn.Module) -> None:
    """Put back the layers that were replaced inside a module, with their present statistics."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, SyncBatchNorm):
                (layer,) = child.layer
                layer.weight, layer.bias = child.weight, child.bias
                for key, buffer in child.named_buffers():
                    layer.register_buffer(key, buffer)
                setattr(parent, name, layer.train(child.training))
