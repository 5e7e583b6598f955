"""Sum of the gradients of all replicas of a stage, overlapped with the backward.

Parameters are gathered in buckets in the order in which their gradients are computed, and the
sum of a bucket over the replicas begins as soon as all of its gradients are there, as in
torch's DistributedDataParallel.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, distributed, nn

from hocket.distributed.membership import Group
from hocket.distributed.world import World

Work: TypeAlias = Any
"""A collective operation that is under way; torch names no public type for it."""

BUCKET_BYTES = 2**22
"""Enough to keep a link busy, small enough for most to be sent before the backward ends."""


class GradientSync:
    """Sums gradients over the replicas of a stage.

    Each replica's loss is weighted with its share of the batch, so that the sum is the gradient
    of the mean over the whole batch.

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
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def finish(self) -> None:
        """Wait until every gradient is the sum over the replicas."""
        with self._world.collective("summing gradients over the replicas"):
            while self._next < len(self._buckets):
                self._reduce_next_bucket()
            for work, flat, bucket in self._pending:
                work.wait()
                sums = flat.split([p.numel() for p in bucket])
                for parameter, total in zip(bucket, sums, strict=True):
                    if parameter.grad is not None:
                        parameter.grad = total.view_as(parameter)
        self._reset()

    def _reset(self) -> None:
        self._missing = {id(bucket): len(bucket) for bucket in self._buckets}
        self._pending: list[tuple[Work, Tensor, list[nn.Parameter]]] = []
        self._next = 0

    def _on_gradient(self, parameter: nn.Parameter) -> None:
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
        # A parameter that was not used has no gradient in any replica; zeros fill its slot.
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket]
        )
        work = distributed.all_reduce(flat, group=self._group, async_op=True)
        self._pending.append((work, flat, bucket))


def build_buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Split parameters into buckets of one dtype each, the last parameters first."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed(parameters):
        bytes_ = parameter.numel() * parameter.element_size()
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
