"""Sum of the gradients of all replicas of a stage, overlapped with the backward.

Parameters are gathered in buckets in the order in which their gradients are computed, and the
sum of a bucket over the replicas begins as soon as all of its gradients are there, as in
torch's DistributedDataParallel.
"""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, distributed, nn

from hocket.distributed import wire
from hocket.distributed.world.membership import Group
from hocket.distributed.world.world import World

Work: TypeAlias = Any
"""A collective operation that is under way; torch names no public type for it."""

BUCKET_BYTES = 2**22
"""Enough to keep a link busy, small enough for most to be sent before the backward ends."""


class GradientSync:
    """Sums gradients over the replicas of a stage.

    Each replica's loss is weighted with its share of the batch, so that the sum is the gradient
    of the mean over the whole batch. A parameter that some replicas did not use gets the sum
    in all of them; one that none has used has no gradient.

    Args:
        parameters: Parameters whose gradients are summed; the same in all replicas.
        world: This process among the others.
        group: Process group of the replicas of this stage.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world: World, group: Group) -> None:
        self._world = world
        self._group = group
        self._buckets = build_buckets(parameters)
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket}
        self._reset()
        on_gradient = weakref.WeakMethod(self._on_gradient)  # the parameters live longer

        def hook(parameter: nn.Parameter) -> None:
            if (method := on_gradient()) is not None:
                method(parameter)

        handles = [p.register_post_accumulate_grad_hook(hook) for p in parameters]
        weakref.finalize(self, lambda: [handle.remove() for handle in handles])

    def finish(self) -> None:
        """Wait until every gradient is the sum over the replicas."""
        activity = "summing gradients over the replicas"
        with self._world.replica_collective(activity) as finish:
            while self._next < len(self._buckets):
                self._reduce_next_bucket()
            for work, flat, bucket in self._pending:
                # NCCL lets the stream wait, and no process.
                finish(work) if self._group is self._world.replica_group else work.wait()
                self._world.open_operations -= 1
                *sums, used = flat.split([*(p.numel() for p in bucket), len(bucket)])
                # Read only where they matter, as they have to be copied from a GPU.
                here = [parameter.grad is not None for parameter in bucket]
                anywhere = here if all(here) else used.bool().tolist()
                for parameter, total, is_used in zip(bucket, sums, anywhere, strict=True):
                    if is_used:
                        parameter.grad = total.view_as(parameter)
        self._reset()

    def _reset(self) -> None:
        self._missing = {id(bucket): len(bucket) for bucket in self._buckets}
        self._pending: list[tuple[Work, Tensor, list[nn.Parameter]]] = []
        self._next = 0

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if self._world.left:
            return  # the parameters are trained by something else
        self._missing[id(self._bucket_of[parameter])] -= 1
        # In the order of the buckets, so that all replicas sum the same ones.
        while self._next < len(self._buckets):
            if self._missing[id(self._buckets[self._next])]:
                return
            self._reduce_next_bucket()

    @torch.no_grad()
    def _reduce_next_bucket(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        # Data may decide which parameters are used: where one has no gradient here, zeros fill
        # its slot, and a flag for each tells whether any replica has one.
        used = bucket[0].new_ones(len(bucket))  # no copy from the host, which would wait
        for number, parameter in enumerate(bucket):
            if parameter.grad is None:
                used[number] = 0
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad.to_dense()).flatten()
            for p in bucket
        ]
        flat = torch.cat([*parts, used])
        self._world.open_operations += 1
        work = distributed.all_reduce(flat, group=self._group, async_op=True)
        self._pending.append((work, flat, bucket))


def build_buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Split parameters into buckets of one dtype each, the last parameters first."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed(parameters):
        bytes_ = parameter.nbytes
        if (
            buckets
            and buckets[-1][0].dtype == parameter.dtype
            and size + bytes_ <= BUCKET_BYTES
        ):
            buckets[-1].append(parameter)
            size += bytes_
        else:
            buckets.append([parameter])
            size = bytes_
    return buckets


@torch.no_grad()
def sync_replicas(world: World, modules: Iterable[nn.Module]) -> None:
    """Copy the weights of the first replica of this stage to the others.

    Args:
        world: This process among the others.
        modules: Modules of the stage.
    """
    if world.replicas == 1:
        return
    activity = "broadcasting the weights of the first replica"
    with world.replica_collective(activity) as finish:
        for value in (v for module in modules for v in module.state_dict().values()):
            dense = wire.to_dense(value)
            if dense.numel():
                finish(
                    distributed.broadcast(
                        wire.tensor_bytes(dense),
                        group_src=0,
                        group=world.replica_group,
                        async_op=True,
                    )
                )
            value.copy_(dense)
