"""The processes that train one network together: K stages with R replicas each.

All of `World` that is not specific to several processes is in `SoloWorld` too.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from torch.distributed.distributed_c10d import PrefixStore, Store

from hocket.distributed.failures.detector import FailureDetector, Finish
from hocket.distributed.failures.phases import Phase, TimeLimits
from hocket.distributed.failures.store_client import connect_again
from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.network.strangers import form_without_strangers
from hocket.distributed.world.collectives import Collectives
from hocket.distributed.world.common_end import CommonEnd
from hocket.distributed.world.flags import StoreFlags
from hocket.distributed.world.membership import Group, Membership
from hocket.distributed.world.process_groups import ProcessGroups
from hocket.errors import WorldError


class NeighbourLink(Protocol):
    """The connection of a world to a neighbour."""

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the neighbour so far."""

    def begin_close(self) -> None:
        """Tell the neighbour that nothing more will come, without waiting for it."""

    def finish_close(self, timeout_s: float) -> bool:
        """Wait until the neighbour says the same; return True if nothing is under way."""


class World(Collectives):
    """This process among all of a training; the replicas of a stage have adjacent ranks.

    A process group cannot take a process in. One that was started alone therefore has no groups
    until the processes reunite, and its collectives are its own.

    Args:
        stages: Number of stages, K.
        replicas: Number of processes that share the batches of a stage, R.
        limits: Seconds that a process may keep another one waiting.
        store: Store of the processes of this training alone.
        identity: Identity of this process.

    Attributes:
        rank: Rank of this process; rank 0 has the first replica of stage 0.
        size: Number of processes, K times R.
        stages: Number of stages, K.
        stage: Number of the stage of this process.
        replicas: Number of replicas of each stage, R.
        replica: Number of the replica of this process.
        names: Names of all processes by rank, such as ``stage 1``, for messages.
        failures: Detector of failed and hanging processes.
        flags: Flags that the processes set without waiting for each other.
        membership: Elastic phases, in which a killed process may rejoin.
        left: True once this process begins to leave the world.
        open_operations: Operations in process groups that this process has not completed.

    Raises:
        WorldError: There are not K times R processes.
        HocketError: Another process has failed, or does not arrive.
    """

    def __init__(
        self,
        stages: int,
        replicas: int,
        limits: TimeLimits,
        store: Store,
        identity: ProcessIdentity,
    ) -> None:
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
            f"stage {rank // replicas}" + f", replica {rank % replicas}" * (replicas > 1)
            for rank in range(self.size)
        ]

        # What the processes tell each other through the store.
        self._store = store
        self._agreements = 0
        self.failures = FailureDetector(
            store, self.names, self.rank, limits, is_silent=identity.is_silent
        )
        flags = PrefixStore("flags", store)
        self.flags = StoreFlags(flags, self.rank, self.size, self.failures)

        # Operations in process groups, and connections to the neighbours.
        self.open_operations = 0
        self._links: list[NeighbourLink] = []
        self._closing = threading.Lock()
        self._closed = self.left = False

        # Meet the others.
        try:
            self.membership = Membership(identity, store, self.failures)
            self._groups = None if self.rejoined else self._form_groups()
        except BaseException:
            self.failures.close()
            raise
        if self._groups is not None:
            self._group = self._groups.collectives

    def _form_groups(self) -> ProcessGroups:
        """Form process groups together with all other processes.

        Raises:
            HocketError: Another process has failed, or does not arrive.
        """
        # Forming a group would hang if another process did not arrive.
        self.membership.wait_for_all()
        while _left_groups:  # by all processes, as they are here now
            _left_groups.pop().destroy()
        timeout_s, store = self.slow_timeout_s, connect_again(self._store)
        form = partial(ProcessGroups, self.stages, self.replicas, timeout_s)
        return self.failures.connect(
            lambda: form_without_strangers(
                form, store, rank=self.rank, size=self.size, timeout_s=timeout_s
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

    def reunite(self) -> None:
        """End the elastic phase when all processes do.

        Raises:
            HocketError: A process has failed, or does not arrive.
        """
        with self.collective("the end of the elastic phase"):
            group = self.membership.reunite(self.slow_timeout_s)
        if group is not None:
            self._group, self._groups = group, None  # one that has come back is in none of them
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

        The next training ends the process groups if nothing is under way in them.
        """
        with self._closing:  # a second caller waits until the first has left
            if self._closed:
                return
            self.left = True
            self.failures.announce_exit()
            for link in self._links:
                link.begin_close()
            end_s = time.monotonic() + self.failures.limits.timeout_s
            quiet = [link.finish_close(end_s - time.monotonic()) for link in self._links]
            if all(quiet) and not self.open_operations and self._groups is not None:
                _left_groups.append(self._groups)
            self.failures.close()
            self._links.clear()
            self._closed = True

    def close_in_background(self) -> None:
        """Leave the world without waiting for anything; safe in a finalizer."""
        self.left = True
        _abandoned.put(self)

    @property
    def name(self) -> str:
        """Name of this process."""
        return self.names[self.rank]

    @property
    def rejoined(self) -> bool:
        """True if this process was started alone, instead of one that was killed."""
        return self.membership.rejoined

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

    def local_stages(self, count: int) -> list[tuple[int, int]]:
        """Return stage and replica of what is in this process, out of ``count`` stages."""
        return [(self.stage, self.replica)]

    def report_failure(self, error: BaseException) -> None:
        """Report to the other processes why this one ends."""
        self.failures.record.report(error)

    def common_end(self) -> CommonEnd | None:
        """Return a new agreement of the replicas on their end; None without replicas."""
        if self.replicas == 1:
            return None
        self._agreements += 1
        store = PrefixStore(f"agreement/{self._agreements}", self._store)
        return CommonEnd(store, self.replica, self.replicas)

    def neighbour(self, offset: int) -> int:
        """Return the rank of the same replica of the stage ``offset`` stages after this one."""
        return self.rank + offset * self.replicas

    def collective(self, activity: str) -> AbstractContextManager[Finish]:
        """Return a context manager for operations of all processes; see `FailureDetector`."""
        return self._operations_among(range(self.size), activity)

    def replica_collective(self, activity: str) -> AbstractContextManager[Finish]:
        """Return the same for operations of the replicas of this stage."""
        first = self.stage * self.replicas
        return self._operations_among(range(first, first + self.replicas), activity)

    @contextmanager
    def _operations_among(self, ranks: Sequence[int], activity: str) -> Iterator[Finish]:
        self.open_operations += 1
        with self.failures.collective(activity, ranks) as finish:
            yield finish
        self.open_operations -= 1


_left_groups: list[ProcessGroups] = []
"""Groups of trainings that this process has left in good order."""
_abandoned: SimpleQueue[World] = SimpleQueue()


def close_abandoned_worlds() -> None:
    """Close worlds whose trainers were forgotten or have failed, and never return."""
    while True:
        _abandoned.get().close()
