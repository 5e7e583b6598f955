"""The processes that train one network together: which stage and which copy of it each has."""

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
    write_first_failure,
)
from hocket.distributed.flags import StoreFlags
from hocket.distributed.identity import ProcessIdentity, identity
from hocket.distributed.membership import Group, Membership
from hocket.distributed.restart import restart_count
from hocket.errors import PeerFailedError, WorldError
from hocket.tree import Tree

# Receives are posted long before anything is sent; who waits too long is for the alarm to say.
NEVER = timedelta(days=365)


class World:
    """This process among those of a training; a stage's replicas have neighbouring ranks.

    Args:
        stages: K.
        replicas: How many processes share the work of a stage.
        timeout_s: How long a process may let another one wait.
        store: Where all processes can read and write, and nobody else but they for this.
        seat: Which process this is; that of the default group if not given.

    Raises:
        WorldError: There are not K times R processes.
        HocketError: Another process has failed, or does not come.
    """

    joined_count: ClassVar[int] = 0
    """How many this process has begun to join; the same in all, wherever one of them fails."""

    def __init__(
        self,
        stages: int,
        replicas: int,
        timeout_s: float,
        store: Store,
        seat: ProcessIdentity | None = None,
    ) -> None:
        seat = seat or ProcessIdentity(
            distributed.get_rank(), distributed.get_world_size(), store
        )
        self.rank, self.size = seat.rank, seat.size
        self.stages = stages
        self.replicas = replicas
        if self.size != stages * replicas:
            copies = f" x {replicas} replicas" if replicas > 1 else ""
            raise WorldError(
                f"there are {self.size} processes, but {stages} stages{copies} need "
                f"{stages * replicas}; start that many, or ask for other stages"
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
        board = PrefixStore("board", store)
        self.flags = StoreFlags(board, self.failures, self.rank, self.size)
        self._ends: list[Callable[[], None]] = []
        self.membership = Membership(seat, store, self.failures, self.name)
        self.rejoined = seat.incarnation > 0
        if self.rejoined:
            return  # the groups of the others are closed to it
        # Making a group would hang where another process does not come.
        self.failures.wait_for_all()
        if replicas > 1:
            # Every process must make every group, whether it belongs to it or not.
            groups = [
                distributed.new_group(
                    range(k * replicas, (k + 1) * replicas),
                    timeout=timedelta(seconds=timeout_s),
                    backend="gloo",
                )
                for k in range(stages)
            ]
            self.siblings = groups[self.stage]
        self.packets = distributed.new_group(backend="gloo", timeout=NEVER)
        self._shared: Group = distributed.new_group(
            backend="gloo", timeout=timedelta(seconds=timeout_s)
        )

    def reunite(self) -> None:
        """Wait until all have come back from where each was on its own.

        Raises:
            HocketError: One has failed, or does not come.
        """
        with self.collective("meeting the others after the last turn"):
            self._shared = self.membership.reunite(self.failures.timeout_s) or self._shared

    def on_close(self, do: Callable[[], None]) -> None:
        """Have something done before this process leaves the others in good order."""
        self._ends.append(do)

    def close(self) -> None:
        """Leave the others in good order."""
        self.failures.announce_exit()
        for do in self._ends:
            do()
        self.failures.close()

    @property
    def is_main(self) -> bool:
        """Whether this is the process that reads data, shows progress and writes files."""
        return self.rank == 0

    def agreement_store(self) -> Store | None:
        """Where replicas agree on something, anew with each call; None if there is but one."""
        self._agreements += 1
        name = f"agreement/{self._agreements}"
        return PrefixStore(name, self._store) if self.replicas > 1 else None

    def neighbour(self, step: int) -> int:
        """The rank of this replica's stage so many stages ahead."""
        return self.rank + step * self.replicas

    def gather(self, value: Any) -> list[Any]:
        """What every process gives here, in the order of ranks; plain JSON."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self.collective("gathering what all have to say"):
            self._shared.allgather([lengths], [torch.tensor([len(data)])]).wait()
            longest = int(max(map(int, lengths)))
            own = torch.zeros(longest, dtype=torch.uint8)
            own[: len(data)] = data
            rows = [torch.empty_like(own) for _ in range(self.size)]
            self._shared.allgather([rows], [own]).wait()
        texts = zip(rows, lengths, strict=True)
        return [json.loads(row[: int(n)].numpy().tobytes()) for row, n in texts]

    def broadcast(self, tree: Tree) -> Tree:
        """The first process's value, in every process; the others' are ignored."""
        found: list[Tensor] = []
        spec = wire.encode_tree(tree, found) if self.is_main else None
        own = [wire.to_dense(tensor) for tensor in found]
        spec, forms = self.gather([spec, [wire.tensor_spec(tensor) for tensor in own]])[0]
        tensors = own if self.is_main else [wire.empty_tensor(form) for form in forms]
        self.broadcast_(tensors, source=0)
        return wire.decode_tree(spec, tensors)

    def broadcast_(self, tensors: Iterable[Tensor], source: int) -> None:
        """Overwrite every process's tensors, gapless and on the CPU, with those of one rank."""
        options = distributed.BroadcastOptions()
        options.rootRank = source
        with self.collective("receiving tensors that all need"):
            for tensor in tensors:
                if tensor.numel():
                    self._shared.broadcast([wire.tensor_bytes(tensor)], options).wait()

    @torch.no_grad()
    def sync_replicas(self, modules: Iterable[nn.Module]) -> None:
        """Give the replicas of this stage the weights of the first of them."""
        if self.replicas == 1:
            return
        with self.collective("receiving the weights of the first replica"):
            for value in (v for module in modules for v in module.state_dict().values()):
                own = wire.to_dense(value)
                if own.numel():
                    distributed.broadcast(
                        wire.tensor_bytes(own), group_src=0, group=self.siblings
                    )
                value.copy_(own)

    @torch.no_grad()
    def collect(self, modules: Sequence[nn.Module]) -> None:
        """Give every process the weights of all stages, those of the first replicas."""
        for stage, module in enumerate(modules):
            own = [v for v in module.state_dict().values() if isinstance(v, Tensor)]
            gapless = [wire.to_dense(tensor) for tensor in own]
            source = stage * self.replicas
            self.broadcast_(gapless, source)
            if self.rank != source:
                for tensor, value in zip(own, gapless, strict=True):
                    tensor.copy_(value)

    def clock_offset(self) -> float:
        """What to add to this process's ``perf_counter`` to have the first process's.

        Of several exchanges the quickest is taken to be symmetric: exact to some 0.1 ms.
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
    def collective(self, words: str) -> Iterator[None]:
        """A stretch in which all processes take part."""
        start = time.monotonic()
        try:
            with self.failures.waiting_for(words, None):
                yield
        except RuntimeError as error:
            if time.monotonic() - start >= self.failures.timeout_s:
                raise self.failures.peers_missing(words) from None
            raise self.failures.peer_lost(None, str(error)) from None


_joined: list[World] = []


def assign_device(device: torch.device, place: int, count: int) -> torch.device:
    """The device of the process at this place on its machine, which has so many GPUs.

    Several stages share a GPU where there are fewer GPUs than processes.

    >>> placed(torch.device("cuda"), place=5, count=4)
    device(type='cuda', index=1)
    >>> placed(torch.device("cuda:3"), place=5, count=4), placed(torch.device("cpu"), 5, 0)
    (device(type='cuda', index=3), device(type='cpu'))
    """
    if device.type == "cuda" and device.index is None and count:
        return torch.device("cuda", place % count)
    return device


def join_world(stages: int, replicas: int, timeout_s: float) -> World | None:
    """The world that this process belongs to; None where it is alone.

    Processes started by torchrun or by ``hocket launch`` form one; a group that the caller has
    initialised is used as it is.

    Raises:
        WorldError: There are not K times R processes.
    """
    if identity() is None:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return None
        network_interface.choose_interface()
        store, rank, size = next(rendezvous("env://"))
        # torchrun keeps its store when it starts its processes again, with the addresses of
        # those that are gone.
        fresh = PrefixStore(f"attempt {restart_count()}", store)
        # With torch's own time-out: how long others take to start is no sign of a hang.
        distributed.init_process_group("gloo", store=fresh, rank=rank, world_size=size)
    own = identity()
    if own is None or own.size == 1:
        return None
    if not _joined:
        atexit.register(shutdown)
        sys.excepthook = _uncaught
    store = _next_store(own)
    World.joined_count += 1
    world = World(stages, replicas, timeout_s, store, own)
    _joined.append(world)
    return world


def shutdown() -> None:
    """Leave all worlds that this process has joined, in good order."""
    while _joined:
        _joined.pop().close()


def is_main() -> bool:
    """Whether this is the process that should print and write files."""
    own = identity()
    return own is None or own.rank == 0


def report_failure(error: BaseException) -> bool:
    """Tell the others why this process ends; whether it is the first that fails."""
    if isinstance(error, PeerFailedError):
        return False
    firsts = [world.failures.report(error) for world in _joined]
    own = identity()
    if own is None:
        return all(firsts)
    # Others may wait for this process to join the next one.
    found = describe_failure(f"process {own.rank}", error)
    first, _ = ask_store(lambda: write_first_failure(_next_store(own), found))
    return all([*firsts, first in (None, found)])


def exit_process(code: int) -> None:
    """End this process, if others know it; alone, it goes on.

    Not by sys.exit: threads that wait for packets would hold the process.
    """
    if not _joined:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _next_store(own: ProcessIdentity) -> Store:
    """What the processes of the next training share; those that failed do not end that one."""
    return PrefixStore(f"hocket/{World.joined_count}", own.store)


def _uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """What becomes of an error that nobody has caught."""
    if report_failure(error):
        told = "".join(traceback.format_exception(error))
        code = int(getattr(kind, "exit_code", 1))
    else:
        told, code = "".join(traceback.format_exception_only(error)), PeerFailedError.exit_code
    # In one piece, as other processes write at the same time.
    sys.stderr.write(told)
    exit_process(130 if isinstance(error, KeyboardInterrupt) else code)
