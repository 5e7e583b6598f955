"""Gradients of a stage whose sums over its replicas are applied some updates later."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hocket.distributed.replicas.gradient_sync import BucketSum, GradientSync


@dataclass(frozen=True)
class LateBatch:
    """Gradient of one batch, whose sum over the replicas is under way.

    Attributes:
        sums: Its sums, by bucket.
        version: Updates before the forward of the batch. How stale the gradient becomes is not
            known yet, as updates before it may be skipped.
        then: Weights of the forward, if a remedy wants them.
    """

    sums: Sequence[BucketSum]
    version: int
    then: Sequence[Tensor] | None


class LateSums:
    """Groups of gradients, each for one update, that wait until they are applied.

    Args:
        reduction: Adds up the gradients of the stage's replicas.
        delay: Updates by which a sum is late.
    """

    def __init__(self, reduction: GradientSync, delay: int) -> None:
        self._reduction = reduction
        self._delay = delay
        self._open: list[LateBatch] = []  # of the next update
        self._closed: deque[tuple[int, list[LateBatch]]] = deque()  # with their epochs

    def __len__(self) -> int:
        """Return the number of updates whose gradients wait."""
        return len(self._closed)

    def add(self, version: int, then: Sequence[Tensor] | None) -> None:
        """Begin to add up the gradients of a batch; see `LateBatch`."""
        self._open.append(LateBatch(self._reduction.take(), version, then))

    def close(self, epoch: int) -> bool:
        """Complete the group of an update; return True if an earlier one is due instead.

        Args:
            epoch: Epoch of its last batch.
        """
        self._closed.append((epoch, self._open))
        self._open = []
        return len(self._closed) > self._delay

    def pop(self) -> tuple[int, list[LateBatch]]:
        """Return the epoch of the oldest group, and its batches."""
        return self._closed.popleft()

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the groups, the open one last, as plain values, once all sums are there."""
        groups = [*self._closed, (None, self._open)]
        return [
            {
                "epoch": epoch,
                "batches": [
                    vars(batch) | {"sums": self._reduction.state_of(batch.sums)}
                    for batch in batches
                ],
            }
            for epoch, batches in groups
        ]

    def _from_state(self, batch: dict[str, Any]) -> LateBatch:
        """Return a batch with its tensors on the device of the gradients."""
        sums, then = self._reduction.from_state(batch["sums"]), batch["then"]
        if then is not None:
            then = [old.to(sums[0].flat.device) for old in then]
        return LateBatch(sums, batch["version"], then)

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Continue from the state of a stage with the same weights."""
        groups = [
            (group["epoch"], [self._from_state(batch) for batch in group["batches"]])
            for group in state
        ]
        *closed, (_, self._open) = groups
        self._closed = deque(closed)
