"""The processes that train one network together: K stages with R replicas each.

All of `World` that is not specific to several processes is in `SoloWorld` too.
"""

import atexit
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from hocket.distributed import network_interface, wire
from hocket.distributed.failures import (
    FailureDetector,
    ask_store,
    describe_failure,
    record_first_failure,
)
from hocket.distributed.flags import StoreFlags
from hocket.distributed.identity import ProcessIdentity, current_identity
from hocket.distributed.membership import Group, Membership
from hocket.distributed.restart import torchrun_restart_count
from hocket.distributed.solo_world import SoloWorld
from hocket.errors import PeerFailedError, WorldError
from hocket.tree import Tree

# Receives are posted long before anything is sent; the failure detector notices hangs.
NO_TIMEOUT = timedelta(days=365)


class World:
    """This process among those of a training; the replicas of a stage have adjacent ranks.

    Args:
        stages: Number of stages, K.
        replicas: Number of processes that share the batches of a stage, R.
        timeout_s: Seconds that a process may keep another one waiting.
        store: Store of the processes of this training alone.
        identity: Identity of this process; that in the default group if not given.

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
        replica_group: Process group of the replicas of this stage, if there are several.
        packet_group: Process group of all processes for packets, without a time-out.

    Raises:
        WorldError: There are not K times R processes.
        HocketError: Another process has failed, or does not arrive.
    """

    joined_count: ClassVar[int] = 0
    """Number of worlds that this process has begun to join; the same in all processes."""

    def __init__(
        self,
        stages: int,
        replicas: int,
        timeout_s: float,
        store: Store,
        identity: ProcessIdentity | None = None,
    ) -> None:
        identity = identity or ProcessIdentity(
            distributed.get_rank(), distributed.get_world_size(), store
        )
        self.rank, self.size = identity.rank, identity.size
        self.stages = stages
        self.replicas = replicas
        if self.size != stages * replicas:
            copies = f" x {replicas} replicas" if replicas > 1 else ""
            raise WorldError(
                f"there are {self.size} processes, but {stages} stages{copies} need "
                f"{stages * replicas}; start that many, or choose another number of stages"
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
        self.failures = FailureDetector(store, self.names, self.rank, timeout_s)
        flags = PrefixStore("flags", store)
        self.flags = StoreFlags(flags, self.failures, self.rank, self.size)
        self._close_callbacks: list[Callable[[], None]] = []
        self.membership = Membership(identity, store, self.failures, self.name)
        self.rejoined = identity.incarnation > 0
        if self.rejoined:
            return  # a process group cannot take a process in
        # Forming a group would hang if another process did not arrive.
        self.failures.wait_for_all()
        if replicas > 1:
            # Every process must form every group, even those that it does not belong to.
            groups = [
                distributed.new_group(
                    range(k * replicas, (k + 1) * replicas),
                    timeout=timedelta(seconds=timeout_s),
                    backend="gloo",
                )
                for k in range(stages)
            ]
            self.replica_group = groups[self.stage]
        self.packet_group = distributed.new_group(backend="gloo", timeout=NO_TIMEOUT)
        self._shared: Group = distributed.new_group(
            backend="gloo", timeout=timedelta(seconds=timeout_s)
        )

    def reunite(self) -> None:
        """End the elastic phase when all processes do.

        Raises:
            HocketError: A process has failed, or does not arrive.
        """
        with self.collective("the end of the elastic phase"):
            self._shared = self.membership.reunite(self.failures.timeout_s) or self._shared

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call a function when this process leaves the world in good order."""
        self._close_callbacks.append(callback)

    def close(self) -> None:
        """Leave the world in good order."""
        self.failures.announce_exit()
        for callback in self._close_callbacks:
            callback()
        self.failures.close()

    @property
    def is_main(self) -> bool:
        """True if this process shows progress and writes files."""
        return self.rank == 0

    @property
    def timeout_s(self) -> float:
        """Seconds that a process may keep another one waiting."""
        return self.failures.timeout_s

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

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all processes in the order of ranks."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self.collective("gathering values from all processes"):
            self._shared.allgather([lengths], [torch.tensor([len(data)])]).wait()
            longest = int(max(map(int, lengths)))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(data)] = data
            rows = [torch.empty_like(padded) for _ in range(self.size)]
            self._shared.allgather([rows], [padded]).wait()
        texts = zip(rows, lengths, strict=True)
        return [json.loads(row[: int(n)].numpy().tobytes()) for row, n in texts]

    def broadcast(self, tree: Tree) -> Tree:
        """Return the value of the first process in every process, and ignore the others."""
        leaves: list[Tensor] = []
        spec = wire.encode_tree(tree, leaves) if self.is_main else None
        dense = [wire.to_dense(tensor) for tensor in leaves]
        spec, forms = self.gather([spec, [wire.tensor_spec(tensor) for tensor in dense]])[0]
        tensors = dense if self.is_main else [wire.empty_tensor(form) for form in forms]
        self.broadcast_(tensors, source=0)
        return wire.decode_tree(spec, tensors)

    def broadcast_(self, tensors: Iterable[Tensor], source: int) -> None:
        """Overwrite dense CPU tensors in every process with those of one rank."""
        options = distributed.BroadcastOptions()
        options.rootRank = source
        with self.collective("broadcasting tensors"):
            for tensor in tensors:
                if tensor.numel():
                    self._shared.broadcast([wire.tensor_bytes(tensor)], options).wait()

    @torch.no_grad()
    def sync_replicas(self, modules: Iterable[nn.Module]) -> None:
        """Copy the weights of the first replica of this stage to the others."""
        if self.replicas == 1:
            return
        with self.collective("broadcasting the weights of the first replica"):
            for value in (v for module in modules for v in module.state_dict().values()):
                dense = wire.to_dense(value)
                if dense.numel():
                    distributed.broadcast(
                        wire.tensor_bytes(dense), group_src=0, group=self.replica_group
                    )
                value.copy_(dense)

    @torch.no_grad()
    def collect_weights(self, modules: Sequence[nn.Module]) -> None:
        """Copy the weights of all stages, from their first replicas, to every process."""
        for stage, module in enumerate(modules):
            tensors = [v for v in module.state_dict().values() if isinstance(v, Tensor)]
            dense = [wire.to_dense(tensor) for tensor in tensors]
            source = stage * self.replicas
            self.broadcast_(dense, source)
            if self.rank != source:
                for tensor, value in zip(tensors, dense, strict=True):
                    tensor.copy_(value)

    def clock_offset(self) -> float:
        """Return the seconds by which the first process's ``perf_counter`` is ahead.

        Assumes that the quickest of several exchanges is symmetric: exact to about 0.1 ms.
        """
        offsets = [(0.0, 0.0)] if self.is_main else []
        with self.collective("comparing clocks"):
            for other in range(1, self.size):
                for _ in range(8 if self.rank in (0, other) else 0):
                    value = torch.zeros(1, dtype=torch.float64)
                    if self.is_main:
                        self._shared.recv([value], other, 0).wait()
                        value.fill_(time.perf_counter())
                        self._shared.send([value], other, 0).wait()
                        continue
                    start = time.perf_counter()
                    self._shared.send([value], 0, 0).wait()
                    self._shared.recv([value], 0, 0).wait()
                    end = time.perf_counter()
                    offsets.append((end - start, float(value) - (start + end) / 2))
        return min(offsets)[1]

    @contextmanager
    def collective(self, activity: str) -> Iterator[None]:
        """Context manager for an operation of all processes, which it names in errors."""
        start = time.monotonic()
        try:
            with self.failures.waiting_for(activity, None):
                yield
        except RuntimeError as error:
            if time.monotonic() - start >= self.failures.timeout_s:
                raise self.failures.peers_missing(activity) from None
            raise self.failures.peer_lost(None, str(error)) from None


_joined: list[World] = []


def join_world(stages: int, replicas: int, timeout_s: float) -> World | SoloWorld:
    """Join the processes of this training; alone, this process gets a `SoloWorld`.

    The processes that torchrun or ``hocket launch`` has started form a world; a default group
    that the caller has initialized is used as it is.

    Args:
        stages: Number of stages, K.
        replicas: Number of processes that share the batches of a stage, R.
        timeout_s: Seconds that a process may keep another one waiting.

    Raises:
        WorldError: There are not K times R processes.
    """
    if current_identity() is None:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return SoloWorld()
        network_interface.choose_interface()
        store, rank, size = next(rendezvous("env://"))
        # torchrun keeps its store when it restarts its processes, with the addresses of those
        # that are gone.
        fresh = PrefixStore(f"attempt {torchrun_restart_count()}", store)
        # With torch's own time-out: a process that takes long to start does not hang.
        distributed.init_process_group("gloo", store=fresh, rank=rank, world_size=size)
    identity = current_identity()
    if identity is None or identity.size == 1:
        return SoloWorld()
    if not _joined:
        atexit.register(shutdown)
        sys.excepthook = _report_uncaught
    store = _next_store(identity)
    World.joined_count += 1
    world = World(stages, replicas, timeout_s, store, identity)
    _joined.append(world)
    return world


def shutdown() -> None:
    """Leave all worlds that this process has joined, in good order."""
    while _joined:
        _joined.pop().close()


def is_main() -> bool:
    """Return True in the process that should print and write files."""
    identity = current_identity()
    return identity is None or identity.rank == 0


def report_failure(error: BaseException) -> bool:
    """Tell the others why this process ends; return True if it is the first that failed."""
    if isinstance(error, PeerFailedError):
        return False
    firsts = [world.failures.report(error) for world in _joined]
    identity = current_identity()
    if identity is None:
        return all(firsts)
    # Others may wait for this process to join the next world.
    message = describe_failure(f"process {identity.rank}", error)
    first, _ = ask_store(lambda: record_first_failure(_next_store(identity), message))
    return all([*firsts, first in (None, message)])


def exit_process(code: int) -> None:
    """End this process with an exit code if it has joined a world; otherwise do nothing.

    sys.exit would not do: threads that wait for packets would keep the process alive.
    """
    if not _joined:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _next_store(identity: ProcessIdentity) -> Store:
    """Return the store of the next training, which holds no failures of earlier ones."""
    return PrefixStore(f"hocket/{World.joined_count}", identity.store)


def _report_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Report an uncaught error to the other processes, print it, and end this process."""
    if report_failure(error):
        text = "".join(traceback.format_exception(error))
        code = int(getattr(kind, "exit_code", 1))
    else:
        text, code = "".join(traceback.format_exception_only(error)), PeerFailedError.exit_code
    # In one piece, as other processes write at the same time.
    sys.stderr.write(text)
    exit_process(130 if isinstance(error, KeyboardInterrupt) else code)
