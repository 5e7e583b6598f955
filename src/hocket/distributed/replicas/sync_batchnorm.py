"""BatchNorm with the statistics of the whole batch, over all replicas of a stage.

torch.nn.SyncBatchNorm does this on GPUs only. Here two differentiable all-reduces make forward
and backward equal to the whole batch's on any device.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hocket.distributed.world.world import World
from hocket.errors import OptionError, list_names

REPLACED_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
"""Forwards that `SharedForward` computes; a subclass may compute something else."""

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


class SharedForward:
    """Forward of a BatchNorm over all replicas, instead of the layer's own.

    The layer stays, as a forward that is cut calls it by its name in the network.

    Attributes:
        world: This process among the others.
    """

    def __init__(self, layer: _BatchNorm, world: World) -> None:
        self._layer = layer
        self.world = world

    def __reduce__(self) -> tuple[Any, ...]:
        """Give a copy of the layer, also one in a file, the layer's own forward.

        This process among the others cannot be copied, and the copy has no replicas.
        """
        # While a copy is made it has no attributes yet, and its forward is its class's.
        return getattr, (self._layer, "forward")

    def __call__(self, input: Tensor) -> Tensor:
        """Normalize (B, C, ...) by the whole batch; by the running statistics in evaluation."""
        layer, world = self._layer, self.world
        if not layer.training or world.left:
            output: Tensor = type(layer).forward(layer, input)
            return output
        dims = [d for d in range(input.dim()) if d != 1]
        local_count = torch.tensor(input.numel() // input.shape[1], device="cpu")
        count_1 = float(_all_reduce(local_count, world))
        shape = [1, -1] + [1] * (input.dim() - 2)
        # Inside autocast an input may have few bits, and BatchNorm's sums have not.
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        mean_C = _differentiable_sum(wide.sum(dims), world) / count_1
        centred = wide - mean_C.view(shape)
        variance_C = _differentiable_sum(centred.square().sum(dims), world) / count_1
        if layer.track_running_stats:
            _update_running_statistics(
                layer, mean_C.detach(), variance_C.detach() * (count_1 / (count_1 - 1))
            )
        output = centred * (variance_C + layer.eps).rsqrt().view(shape)
        if layer.weight is not None:
            output = output * layer.weight.view(shape)
        if layer.bias is not None:
            output = output + layer.bias.view(shape)
        return output.to(input.dtype)


@torch.no_grad()
def _update_running_statistics(layer: _BatchNorm, mean_C: Tensor, variance_C: Tensor) -> None:
    """Update the running statistics as BatchNorm does, by a variance without bias."""
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked.add_(1)
    momentum = layer.momentum
    if momentum is None:
        momentum = 1 / float(layer.num_batches_tracked)
    for running, new in ((layer.running_mean, mean_C), (layer.running_var, variance_C)):
        assert running is not None
        running.mul_(1 - momentum).add_(new.to(running.dtype), alpha=momentum)


def _differentiable_sum(tensor: Tensor, world: World) -> Tensor:
    total: Tensor = _AllReduceSum.apply(tensor, world)  # type: ignore[no-untyped-call]
    return total


def require_replaceable_forwards(layers: Iterable[tuple[str, nn.Module]]) -> None:
    """Check that each BatchNorm among some layers computes what PyTorch's computes.

    Args:
        layers: The layers, each with its name in the network.

    Raises:
        OptionError: A BatchNorm has its own forward.
    """
    names = [repr(name) for name, layer in layers if _has_own_forward(layer)]
    if names:
        raise OptionError(
            "batchnorm is 'shared', which would leave out the forwards that these BatchNorm "
            f"layers have of their own: {list_names(names)}; use "
            "batchnorm='local', or put what they compute beside BatchNorm, such as an "
            "activation, into modules of their own"
        )


def _has_own_forward(layer: nn.Module) -> bool:
    if not isinstance(layer, _BatchNorm) or isinstance(layer.forward, SharedForward):
        return False  # no BatchNorm, or one of an earlier training that was not closed
    return getattr(layer.forward, "__func__", None) not in REPLACED_FORWARDS


def share_statistics(module: nn.Module, world: World) -> None:
    """Let every BatchNorm inside a module normalize by the batches of all replicas."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.forward = SharedForward(layer, world)  # type: ignore[method-assign]


def unshare_statistics(module: nn.Module, world: object) -> None:
    """Give every BatchNorm that shares its statistics in this world its own forward back.

    Layers of a later training share them in another one, and go on.
    """
    for layer in module.modules():
        forward = vars(layer).get("forward")
        if isinstance(forward, SharedForward) and forward.world is world:
            del layer.forward
