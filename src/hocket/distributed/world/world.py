"""The processes that train one network together: K stages with R replicas each.

All of `World` that is not specific to several processes is in `SoloWorld` too.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore, Store

from hocket.distributed import wire
from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.phases import Phase, others
from hocket.distributed.failures.store_client import connect_again
from hocket.distributed.failures.waits import Finish
from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.network.strangers import form_behind_closed_door
from hocket.distributed.world.flags import StoreFlags
from hocket.distributed.world.membership import Group, Membership
from hocket.distributed.world.process_groups import GroupPool, ProcessGroups, Shape
from hocket.errors import WorldError
from hocket.tree import Tree


@dataclass
class CollectiveCounts:
    """Numbers of collective operations of one process in its process groups.

    Attributes:
        begun: Those that the process has begun.
        done: Those that it has completed.
    """

    begun: int = 0
    done: int = 0


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
    """This process among those of a training; the replicas of a stage have adjacent ranks.

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
        rejoined: True if this process was started alone in the place of one that was killed;
            it then has no process groups.
        failures: Detector of failed and hanging processes.
        flags: Flags that the processes set without waiting for each other.
        membership: Elastic phases, in which a killed process may rejoin.
        left: True once this process begins to leave the world.
        collectives: Number of collective operations of this process.
        groups: Process groups of this training.
        replica_group: Process group of the replicas of this stage; None without replicas.

    Raises:
        WorldError: There are not K times R processes.
        HocketError: Another process has failed, or does not arrive.
    """

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
        self._store = store
        self._agreements = 0
        self.failures = FailureDetector(
            store,
            self.names,
            self.rank,
            timeout_s,
            slow_timeout_s,
            is_silent=identity.is_silent,
            find_lost=identity.find_lost,
        )
        flags = PrefixStore("flags", store)
        self.flags = StoreFlags(flags, self.failures, self.rank, self.size)
        self.membership = Membership(identity, store, self.failures, self.name)
        self.rejoined = identity.incarnation > 0
        self.collectives = CollectiveCounts()
        self._groups_are_intact = not self.rejoined
        self._links: list[NeighbourLink] = []
        self._closing = threading.Lock()
        self._closed = self.left = False
        if self.rejoined:
            return  # a process group cannot take a process in
        try:
            self.groups = self._take_groups(Shape(stages, replicas, slow_timeout_s))
        except BaseException:
            self.failures.close()
            raise
        count = self.groups.collective_count
        self.collectives = CollectiveCounts(count, count)
        self.replica_group = self.groups.replicas
        self._shared: Group = self.groups.collectives

    def _take_groups(self, shape: Shape) -> ProcessGroups:
        """Take process groups, the same as all other processes.

        Raises:
            HocketError: Another process has failed, or does not arrive.
        """
        self.flags.set("groups", json.dumps(_pool.offer(shape)))
        # Forming a group would hang if another process did not arrive.
        self.failures.wait_for_all()
        awaited, ranks = "what all processes offer", others(range(self.size), self.rank)
        with self.failures.waiting_for(f"waiting for {awaited}", ranks, awaited) as wait:
            while (offers := self.flags.values("groups")) is None:
                wait.look()  # a store that was slow to take an offer has it in the end
                time.sleep(0.01)
        taken = partial(_pool.take, shape, [json.loads(offer) for offer in offers])
        door = PrefixStore("door", connect_again(self._store))
        return self.failures.connect(
            lambda: form_behind_closed_door(
                taken, door, rank=self.rank, size=self.size, timeout_s=shape.timeout_s
            )
        )

    def reunite(self) -> None:
        """End the elastic phase when all processes do.

        Raises:
            HocketError: A process has failed, or does not arrive.
        """
        with self.collective("the end of the elastic phase"):
            group = self.membership.reunite(self.slow_timeout_s)
        if group is not None:
            self._shared, self._groups_are_intact = group, False
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
            complete = self.collectives.begun == self.collectives.done
            if all(quiet) and complete and self._groups_are_intact:
                self.groups.collective_count = self.collectives.done
                _pool.give_back(self.groups)
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
        self.failures.report(error)

    def agreement_store(self) -> Store | None:
        """Return a new store for an agreement between replicas; None without replicas."""
        self._agreements += 1
        name = f"agreement/{self._agreements}"
        return PrefixStore(name, self._store) if self.replicas > 1 else None

    def neighbour(self, offset: int) -> int:
        """Return the rank of the same replica of the stage ``offset`` stages after this one."""
        return self.rank + offset * self.replicas

    def gather(self, value: Any, purpose: str = "training") -> list[Any]:
        """Return the JSON values of all processes in the order of ranks.

        Args:
            value: The value of this process.
            purpose: What it does, in a few words; processes that do different things do not
                get values of each other.

        Raises:
            WorldError: They do different things.
        """
        text = json.dumps([purpose, value]).encode()
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self.collective(purpose) as finish:
            finish(self._shared.allgather([lengths], [torch.tensor([len(data)])]))
            longest = int(max(map(int, lengths)))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(data)] = data
            rows = [torch.empty_like(padded) for _ in range(self.size)]
            finish(self._shared.allgather([rows], [padded]))
        texts = zip(rows, lengths, strict=True)
        pairs = [json.loads(row[: int(n)].numpy().tobytes()) for row, n in texts]
        if len({purpose for purpose, _ in pairs}) > 1:
            named = [f"rank {rank} is {purpose}" for rank, (purpose, _) in enumerate(pairs)]
            raise WorldError(
                f"the processes do different things at the same time: {', '.join(named)}; call "
                "evaluate, predict, gather, collect and state_dict in all processes alike"
            )
        return [value for _, value in pairs]

    def broadcast(self, tree: Tree, source: int = 0) -> Tree:
        """Return the value of one process in every process, and ignore the others.

        Args:
            tree: The value of this process, with tensors on the CPU.
            source: Rank of the process whose value it is to be.
        """
        leaves: list[Tensor] = []
        spec = wire.encode_tree(tree, leaves) if self.rank == source else None
        dense = [wire.to_dense(tensor) for tensor in leaves]
        described = [spec, [wire.tensor_spec(tensor) for tensor in dense]]
        spec, forms = self.gather(described, "sharing values")[source]
        tensors = dense if self.rank == source else [wire.empty_tensor(form) for form in forms]
        self.broadcast_(tensors, source)
        return wire.decode_tree(spec, tensors)

    def broadcast_(self, tensors: Iterable[Tensor], source: int) -> None:
        """Overwrite dense CPU tensors in every process with those of one rank."""
        options = distributed.BroadcastOptions()
        options.rootRank = source
        with self.collective("sharing tensors (collect, state_dict, predict)") as finish:
            for tensor in tensors:
                if tensor.numel():
                    finish(self._shared.broadcast([wire.tensor_bytes(tensor)], options))

    @torch.no_grad()
    def sync_replicas(self, modules: Iterable[nn.Module]) -> None:
        """Copy the weights of the first replica of this stage to the others."""
        if self.replicas == 1:
            return
        activity = "broadcasting the weights of the first replica"
        with self.replica_collective(activity) as finish:
            for value in (v for module in modules for v in module.state_dict().values()):
                dense = wire.to_dense(value)
                if dense.numel():
                    finish(
                        distributed.broadcast(
                            wire.tensor_bytes(dense),
                            group_src=0,
                            group=self.replica_group,
                            async_op=True,
                        )
                    )
                value.copy_(dense)

    @torch.no_grad()
    def copy_weights(self, module: nn.Module, source: int) -> None:
        """Overwrite the weights and statistics of a module with those of one rank."""
        tensors = [v for v in module.state_dict().values() if isinstance(v, Tensor)]
        dense = [wire.to_dense(tensor) for tensor in tensors]
        self.broadcast_(dense, source)
        if self.rank != source:
            for tensor, value in zip(tensors, dense, strict=True):
                tensor.copy_(value)

    def clock_offset(self) -> float:
        """Return the seconds by which the first process's ``perf_counter`` is ahead.

        Assumes that the quickest of several exchanges is symmetric: exact to about 0.1 ms.
        """
        offsets = [(0.0, 0.0)] if self.is_main else []
        with self.collective("comparing clocks") as finish:
            for other in range(1, self.size):
                for _ in range(8 if self.rank in (0, other) else 0):
                    value = torch.zeros(1, dtype=torch.float64)
                    if self.is_main:
                        finish(self._shared.recv([value], other, 0))
                        value.fill_(time.perf_counter())
                        finish(self._shared.send([value], other, 0))
                        continue
                    start = time.perf_counter()
                    finish(self._shared.send([value], 0, 0))
                    finish(self._shared.recv([value], 0, 0))
                    end = time.perf_counter()
                    offsets.append((end - start, float(value) - (start + end) / 2))
        return min(offsets)[1]

    def collective(self, activity: str) -> AbstractContextManager[Finish]:
        """Return a context manager for operations of all processes; see `FailureDetector`."""
        return self._collective(activity, range(self.size))

    def replica_collective(self, activity: str) -> AbstractContextManager[Finish]:
        """Return the same for operations of the replicas of this stage."""
        first = self.stage * self.replicas
        return self._collective(activity, range(first, first + self.replicas))

    @contextmanager
    def _collective(self, activity: str, ranks: Sequence[int]) -> Iterator[Finish]:
        """Count the operations, and wait for them."""
        self.collectives.begun += 1
        with self.failures.collective(activity, ranks) as finish:
            yield finish
        self.collectives.done += 1


_pool = GroupPool()
_abandoned: SimpleQueue[World] = SimpleQueue()


def close_abandoned_worlds() -> None:
    """Close worlds whose trainers were forgotten or have failed, and never return."""
    while True:
        _abandoned.get().close()
