"""Sums over the replicas of a stage that are in several processes."""

from collections.abc import Sequence

from torch import Tensor, distributed

from hocket.distributed.failures.detector import Operation
from hocket.distributed.world.membership import Group
from hocket.distributed.world.world import World


class ProcessExchange:
    """Exchange of a replica whose process has it alone, in a group of such processes."""

    def __init__(self, world: World, group: Group) -> None:
        self.replicas = world.replicas
        self._world = world
        self._group = group

    @property
    def left(self) -> bool:
        """True if this process has left the others."""
        return self._world.left

    def add_up(self, tensor: Tensor) -> Operation:
        """See the protocol."""
        self._world.open_operations += 1
        return distributed.all_reduce(tensor, group=self._group, async_op=True)

    def complete(self, works: Sequence[Operation], activity: str) -> None:
        """See the protocol."""
        with self._world.replica_collective(activity) as finish:
            for work in works:
                if self._group is self._world.replica_group:
                    finish(work)
                else:  # NCCL lets the stream wait, and no process
                    work.wait()
                self._world.open_operations -= 1
