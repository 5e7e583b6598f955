"""Gradients of the replicas of a stage become the gradient of their batches together.

The sums are under way while the backward still goes on: parameters are gathered in buckets, in
the order in which their gradients come, and a bucket leaves as soon as it is full.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, distributed, nn

from hocket.distributed.world import World

Work: TypeAlias = Any
"""A collective on its way; torch names no public type for it."""
Group: TypeAlias = Any
"""A process group; the same."""

BUCKET_BYTES = 2**22
"""Enough to keep a link busy, small enough for most to leave before the backward ends."""


class GradientSync:
    """Sums gradients over the replicas of a stage.

    Each replica's loss is weighted with its share of the batch, so that the sum is the gradient
    of the mean over the whole batch.

    Args:
        parameters: Whose gradients; the same in all replicas.
        world: This process among the others.
        group: That of the replicas of this stage.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world: World, group: Group) -> None:
        self._world = world
        self._group = group
        self._buckets = _filled(parameters)
        self._home = {p: bucket for bucket in self._buckets for p in bucket}
        self._begin()
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def finish(self) -> None:
        """Wait until every gradient is the sum over the replicas."""
        with self._world.collective("adding up gradients with the other replicas"):
            while self._next < len(self._buckets):
                self._launch()
            for work, flat, bucket in self._under_way:
                work.wait()
                parts = flat.split([p.numel() for p in bucket])
                for parameter, part in zip(bucket, parts, strict=True):
                    if parameter.grad is not None:
                        parameter.grad = part.view_as(parameter)
        self._begin()

    def _begin(self) -> None:
        self._missing = {id(bucket): len(bucket) for bucket in self._buckets}
        self._under_way: list[tuple[Work, Tensor, list[nn.Parameter]]] = []
        self._next = 0

    def _arrived(self, parameter: nn.Parameter) -> None:
        self._missing[id(self._home[parameter])] -= 1
        # In the order of the buckets, so that all replicas launch the same ones.
        while self._next < len(self._buckets):
            if self._missing[id(self._buckets[self._next])]:
                return
            self._launch()

    @torch.no_grad()
    def _launch(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        # A parameter that was not used has no gradient in any replica; zeros keep its place.
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket]
        )
        work = distributed.all_reduce(flat, group=self._group, async_op=True)
        self._under_way.append((work, flat, bucket))


def _filled(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Buckets of one dtype each; the last parameters first, as a backward has them."""
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
