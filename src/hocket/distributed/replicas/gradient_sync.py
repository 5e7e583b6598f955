"""Sum of the gradients of all replicas of a stage, overlapped with the backward.

Parameters are gathered in buckets in the order in which their gradients are computed, and the
sum of a bucket over the replicas begins as soon as all of its gradients are there, as in
torch's DistributedDataParallel.
"""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hocket.distributed.failures.detector import Operation
from hocket.distributed.replicas.buckets import build_buckets
from hocket.distributed.replicas.exchange import Exchange
from hocket.distributed.wire import to_dense
from hocket.distributed.world.collectives import overwrite
from hocket.distributed.world.world import World

ACTIVITY = "summing gradients over the replicas"


@dataclass(eq=False)
class BucketSum:
    """Sum of the gradients of a bucket over the replicas, perhaps under way.

    Attributes:
        bucket: The parameters.
        flat: Their sums, one after another, and for each the number of replicas that used it.
        here: For each parameter, True if this replica has used it.
        work: Operation that computes it; None once that is done.
    """

    bucket: Sequence[nn.Parameter]
    flat: Tensor
    here: list[bool]
    work: Operation | None = None


class GradientSync:
    """Sums gradients over the replicas of a stage.

    Each replica's loss is weighted with its share of the batch, so that the sum is the gradient
    of the mean over the whole batch. A parameter that some replicas did not use gets the sum
    in all of them; one that none has used has no gradient.

    Args:
        parameters: Parameters whose gradients are summed; the same in all replicas.
        exchange: Exchange with the other replicas.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], exchange: Exchange) -> None:
        self._exchange = exchange
        self._buckets = build_buckets(parameters)
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket}
        self._reset()
        on_gradient = weakref.WeakMethod(self._on_gradient)  # the parameters live longer

        def hook(parameter: nn.Parameter) -> None:
            if (method := on_gradient()) is not None:
                method(parameter)

        handles = [p.register_post_accumulate_grad_hook(hook) for p in parameters]
        weakref.finalize(self, lambda: [handle.remove() for handle in handles])

    def expect(self) -> None:
        """Begin sums in the next backward, the last of a batch; other backwards begin none."""
        self._reset()
        self._expects = True

    def take(self) -> list[BucketSum]:
        """Return the sums of the gradients in ``grad``, all of which are under way."""
        while self._next < len(self._buckets):
            self._reduce_next_bucket()
        taken = self._pending
        self._reset()
        return taken

    def wait(self, sums: Sequence[BucketSum]) -> None:
        """Wait until sums have arrived."""
        works = [each.work for each in sums if each.work is not None]
        self._exchange.complete(works, ACTIVITY)
        for each in sums:
            each.work = None

    def put(self, sums: Sequence[BucketSum]) -> None:
        """Wait for sums, and put them into ``grad`` of the parameters."""
        self.wait(sums)
        for each in sums:
            bucket, here = each.bucket, each.here
            *totals, used = each.flat.split([*(p.numel() for p in bucket), len(bucket)])
            # Read only where they matter, as they have to be copied from a GPU.
            anywhere = here if all(here) else used.bool().tolist()
            for parameter, total, is_used in zip(bucket, totals, anywhere, strict=True):
                if is_used:
                    parameter.grad = total.view_as(parameter)

    def state_of(self, sums: Sequence[BucketSum]) -> list[dict[str, Any]]:
        """Return sums as plain values, once they have arrived."""
        self.wait(sums)
        return [{"flat": each.flat, "here": each.here} for each in sums]

    def from_state(self, state: Sequence[dict[str, Any]]) -> list[BucketSum]:
        """Return the sums of such a state, of the same parameters."""
        return [
            BucketSum(bucket, each["flat"].to(bucket[0].device), list(each["here"]))
            for bucket, each in zip(self._buckets, state, strict=True)
        ]

    def _reset(self) -> None:
        self._missing = {id(bucket): len(bucket) for bucket in self._buckets}
        self._pending: list[BucketSum] = []
        self._next = 0
        self._expects = False

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if not self._expects or self._exchange.left:
            return  # another backward, perhaps of something else that trains the parameters
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
        here = [parameter.grad is not None for parameter in bucket]
        used = bucket[0].new_ones(len(bucket))  # no copy from the host, which would wait
        for number, parameter in enumerate(bucket):
            if parameter.grad is None:
                used[number] = 0
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad.to_dense()).flatten()
            for p in bucket
        ]
        flat = torch.cat([*parts, used])
        self._pending.append(BucketSum(bucket, flat, here, self._exchange.add_up(flat)))


@torch.no_grad()
def sync_replicas(world: World, modules: Iterable[nn.Module]) -> None:
    """Copy weights and buffers of the first replica of this stage to the others."""
    if world.replicas == 1:
        return
    values = [v for each in modules for v in (*each.parameters(), *each.buffers())]
    with world.replica_collective("sharing the weights of the first replica") as finish:
        for value in values:
            dense = to_dense(value).contiguous()  # others may have other strides
            overwrite(dense, world.replica_group, 0, finish)
            if world.replica:
                value.copy_(dense)
