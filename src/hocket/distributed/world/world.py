"""The processes that train one network together: K stages with R replicas each.

All of `World` that is not specific to several processes is in `SoloWorld` too.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from torch import distributed, nn
from torch.distributed.distributed_c10d import PrefixStore, Store

from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.phases import Phase, others
from hocket.distributed.failures.store_client import connect_again
from hocket.distributed.failures.waits import Finish
from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.network.strangers import form_without_strangers
from hocket.distributed.world.collectives import (
    Collectives,
    Operations,
    SoloCollectives,
)
from hocket.distributed.world.flags import StoreFlags
from hocket.distributed.world.membership import Group, Membership
from hocket.distributed.world.process_groups import GroupPool, ProcessGroups, Shape
from hocket.errors import WorldError
from hocket.tree import Tree

T = TypeVar("T")


class NeighbourLink(Protocol):
    """The connection of a world to a neighbour."""

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the neighbour so far."""

    def begin_close(self) -> None:
        """Tell the neighbour that nothing more will come, without waiting for it."""

    def finish_close(self, timeout_s: float) -> bool:
        """Wait until the neighbour says the same; return True if nothing is under way."""


class World:
    """This process among all of a training; the replicas of a stage have adjacent ranks.

    Args:
        stages: Number of stages, K.
        replicas: Number of processes that share the batches of a stage, R.
        timeout_s: Seconds that an action of a process may keep another one waiting.
        store: Store of the processes of this training alone.
        identity: Identity of this process; that in the default group if not given.
        slow_timeout_s: The same for a phase that is no training step.

    Attributes:
        rank: Rank of this process; rank 0 has the first replica of stage 0.
        size: Number of processes, K times R.
        stages: Number of stages, K.
        stage: Number of the stage of this process.
        replicas: Number of replicas of each stage, R.
        replica: Number of the replica of this process.
        names: Names of all processes by rank, such as ``stage 1``, for messages.
        name: Name of this process.
        rejoined: True if this process was started alone, instead of one that was killed.
        failures: Detector of failed and hanging processes.
        flags: Flags that the processes set without waiting for each other.
        membership: Elastic phases, in which a killed process may rejoin.
        left: True once this process begins to leave the world.
        operations: Counts of the operations of this process in process groups.
        collectives: Operations of all processes.

    Raises:
        WorldError: There are not K times R processes.
        HocketError: Another process has failed, or does not arrive.
    """

    rejoined = False

    def __init__(
        self,
        stages: int,
        replicas: int,
        timeout_s: float,
        store: Store,
        identity: ProcessIdentity | None = None,
        slow_timeout_s: float = 1800.0,
    ) -> None:
        identity = identity or ProcessIdentity(
            distributed.get_rank(), distributed.get_world_size(), store
        )

        # The place of this process, and the names of all.
        self.rank, self.size = identity.rank, identity.size
        self.stages = stages
        self.replicas = replicas
        if self.size != stages * replicas:
            copies = f" x {replicas} replicas" if replicas > 1 else ""
            wanted = stages * replicas
            need = "1 stage needs" if wanted == 1 else f"{stages} stages{copies} need"
            raise WorldError(
                f"there are {self.size} processes, but {need} {wanted}; start that many, or "
                "choose another number of stages"
            )
        self.stage, self.replica = divmod(self.rank, replicas)
        self.names = [
            f"stage {rank // replicas}"
            + (f", replica {rank % replicas}" if replicas > 1 else "")
            for rank in range(self.size)
        ]
        self.name = self.names[self.rank]
        if replicas > 1 and stages == 1:
            raise WorldError(
                f"one stage with {replicas} replicas is data parallelism; use "
                "torch.nn.parallel.DistributedDataParallel for that"
            )

        # What the processes tell each other through the store.
        self._store = store
        self._agreements = 0
        self.failures = FailureDetector(
            store,
            self.names,
            self.rank,
            timeout_s,
            slow_timeout_s,
            is_silent=identity.is_silent,
        )
        flags = PrefixStore("flags", store)
        self.flags = StoreFlags(flags, self.failures, self.rank, self.size)
        self.membership = Membership(identity, store, self.failures, self.name)

        # Operations in process groups, and connections to the neighbours.
        self.operations = Operations(self.failures)
        self._links: list[NeighbourLink] = []
        self._closing = threading.Lock()
        self._closed = self.left = False

        # Meet the others.
        self._groups: ProcessGroups | None
        self.collectives: Collectives | SoloCollectives
        try:
            self._groups, self.collectives = self._join(Shape(stages, replicas, slow_timeout_s))
        except BaseException:
            self.failures.close()
            raise

    def _join(self, shape: Shape) -> tuple[ProcessGroups | None, Collectives | SoloCollectives]:
        """Meet the other processes; return process groups, and the operations of all.

        Raises:
            HocketError: Another process has failed, or does not arrive.
        """
        groups = self._take_groups(shape)
        self.operations.begun = self.operations.done = groups.collective_count
        group = groups.collectives
        return groups, Collectives(self.operations, group, self.rank, self.size)

    def _take_groups(self, shape: Shape) -> ProcessGroups:
        """Take process groups, the same as all other processes.

        Raises:
            HocketError: Another process has failed, or does not arrive.
        """
        self.flags.set("groups", json.dumps(_pool.offer(shape)))
        # Forming a group would hang if another process did not arrive.
        self.membership.barriers.wait_for_all()
        awaited, ranks = "what all processes offer", others(range(self.size), self.rank)
        with self.failures.waiting_for(f"waiting for {awaited}", ranks, awaited) as wait:
            while (offers := self.flags.values("groups")) is None:
                wait.look()  # a store that was slow to take an offer has it in the end
                time.sleep(0.01)
        taken = partial(_pool.take, shape, [json.loads(offer) for offer in offers])
        door = PrefixStore("door", connect_again(self._store))
        return self.failures.connect(
            lambda: form_without_strangers(
                taken, door, rank=self.rank, size=self.size, timeout_s=shape.timeout_s
            )
        )

    @property
    def groups(self) -> ProcessGroups:
        """Process groups of this training.

        Raises:
            WorldError: A process was started again alone, so that there are none.
        """
        if self._groups is None:
            raise WorldError(
                f"{self.name} has no process groups in common with the others, as a process "
                "was started again alone; start the whole job again, from its last checkpoints"
            )
        return self._groups

    @property
    def replica_group(self) -> Group:
        """Process group of the replicas of this stage; None without replicas."""
        return self.groups.replicas

    def together(self, make: Callable[[], T]) -> T | None:
        """Return the result of a function that all processes call at the same time.

        A process that was started again alone does not call it, and gets None.
        """
        return make()

    def reunite(self) -> None:
        """End the elastic phase when all processes do.

        Raises:
            HocketError: A process has failed, or does not arrive.
        """
        with self.collective("the end of the elastic phase"):
            group = self.membership.reunite(self.slow_timeout_s)
        if group is not None:
            self.collectives = Collectives(self.operations, group, self.rank, self.size)
            self._groups = None  # one that has come back is in none of them
            self.failures.operations = 0  # one that has come back has begun fewer

    def add_link(self, link: NeighbourLink) -> None:
        """Close a connection when this process leaves the world."""
        self._links.append(link)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the neighbours so far."""
        return sum(link.sent_bytes for link in self._links)

    def close(self) -> None:
        """Leave the world, in good order if the neighbours do the same in time.

        The next training takes the process groups if nothing is under way in them.
        """
        with self._closing:  # a second caller waits until the first has left
            if self._closed:
                return
            self.left = True
            self.failures.announce_exit()
            for link in self._links:
                link.begin_close()
            end_s = time.monotonic() + self.failures.timeout_s
            quiet = [link.finish_close(end_s - time.monotonic()) for link in self._links]
            if all(quiet) and self.operations.complete and self._groups is not None:
                self._groups.collective_count = self.operations.done
                _pool.give_back(self._groups)
            self.failures.close()
            self._links.clear()
            self._closed = True

    def close_in_background(self) -> None:
        """Leave the world without waiting for anything; safe in a finalizer."""
        self.left = True
        _abandoned.put(self)

    @property
    def is_main(self) -> bool:
        """True if this process shows progress and writes files."""
        return self.rank == 0

    @property
    def slow_timeout_s(self) -> float:
        """Seconds that a phase which is no training step may keep a process waiting."""
        return self.failures.limits.slow_timeout_s

    def in_phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Return a context manager for a phase that is no training step."""
        return self.failures.in_phase(phase)

    @property
    def reads_data(self) -> bool:
        """True if this process has the first stage, which reads the data."""
        return self.stage == 0

    @property
    def process_name(self) -> str:
        """Name of this process in names of files, such as stage1 or stage1-replica0."""
        return f"stage{self.stage}" + (f"-replica{self.replica}" if self.replicas > 1 else "")

    def local_stages(self, count: int) -> range:
        """Return the numbers of the stages in this process, out of ``count``: its own stage."""
        return range(count)[self.stage : self.stage + 1]

    def report_failure(self, error: BaseException) -> None:
        """Report to the other processes why this one ends."""
        self.failures.record.report(error)

    def agreement_store(self) -> Store | None:
        """Return a new store for an agreement between replicas; None without replicas."""
        self._agreements += 1
        name = f"agreement/{self._agreements}"
        return PrefixStore(name, self._store) if self.replicas > 1 else None

    def neighbour(self, offset: int) -> int:
        """Return the rank of the same replica of the stage ``offset`` stages after this one."""
        return self.rank + offset * self.replicas

    def gather(self, value: Any, purpose: str = "training") -> list[Any]:
        """Return the JSON values of all processes; see `Collectives`."""
        return self.collectives.gather(value, purpose)

    def broadcast(self, tree: Tree, source: int = 0) -> Tree:
        """Return the value of one process in every process; see `Collectives`."""
        return self.collectives.broadcast(tree, source)

    def copy_weights(self, module: nn.Module, source: int) -> None:
        """Overwrite the weights of a module with one rank's; see `Collectives`."""
        self.collectives.copy_weights(module, source)

    def clock_offset(self) -> float:
        """Return the seconds by which the first process's clock is ahead; see `Collectives`."""
        return self.collectives.clock_offset()

    def collective(self, activity: str) -> AbstractContextManager[Finish]:
        """Return a context manager for operations of all processes; see `FailureDetector`."""
        return self.operations.among(range(self.size), activity)

    def replica_collective(self, activity: str) -> AbstractContextManager[Finish]:
        """Return the same for operations of the replicas of this stage."""
        first = self.stage * self.replicas
        return self.operations.among(range(first, first + self.replicas), activity)


class RejoinedWorld(World):
    """World of a process that was started alone, instead of one that was killed.

    A process group cannot take a process in. So until the processes reunite, this one has no
    groups, and its collectives are its own.
    """

    rejoined = True

    def _join(self, shape: Shape) -> tuple[None, SoloCollectives]:
        return None, SoloCollectives()

    def together(self, make: Callable[[], T]) -> T | None:
        """Return None: the others have done it already."""
        return None


_pool = GroupPool()
_abandoned: SimpleQueue[World] = SimpleQueue()


def close_abandoned_worlds() -> None:
    """Close worlds whose trainers were forgotten or have failed, and never return."""
    while True:
        _abandoned.get().close()
