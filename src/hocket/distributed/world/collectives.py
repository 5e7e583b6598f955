"""Operations in which several processes of a training take part at the same time."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from hocket.distributed import wire
from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.waits import Finish
from hocket.distributed.world.membership import Group
from hocket.errors import WorldError
from hocket.tree import Tree


class Operations:
    """Counts of this process's operations in process groups, which the detector watches.

    Args:
        failures: Failure detector of the world.

    Attributes:
        begun: Operations that the process has begun.
        done: Operations that it has completed.
    """

    def __init__(self, failures: FailureDetector) -> None:
        self.begun = self.done = 0
        self._failures = failures

    @contextmanager
    def among(self, ranks: Sequence[int], activity: str) -> Iterator[Finish]:
        """Context manager for operations of some processes; see `FailureDetector.collective`.

        Args:
            ranks: Ranks of all processes that take part.
            activity: Text for messages, the same in all of them.
        """
        self.begun += 1
        with self._failures.collective(activity, ranks) as finish:
            yield finish
        self.done += 1

    @property
    def complete(self) -> bool:
        """True if none is under way or was broken off."""
        return self.begun == self.done


class Collectives:
    """Operations of all processes of a training.

    Args:
        operations: Counts the operations.
        group: Process group of all processes.
        rank: Rank of this process.
        size: Number of processes.
    """

    def __init__(self, operations: Operations, group: Group, rank: int, size: int) -> None:
        self._operations = operations
        self._group = group
        self._rank = rank
        self._size = size

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
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]

        # Gather the lengths, and then texts that are all as long as the longest.
        with self._all(purpose) as finish:
            finish(self._group.allgather([lengths], [torch.tensor([len(data)])]))
            longest = int(max(map(int, lengths)))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(data)] = data
            rows = [torch.empty_like(padded) for _ in range(self._size)]
            finish(self._group.allgather([rows], [padded]))

        # Compare the purposes.
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
        spec = wire.encode_tree(tree, leaves) if self._rank == source else None
        dense = [wire.to_dense(tensor) for tensor in leaves]
        described = [spec, [wire.tensor_spec(tensor) for tensor in dense]]
        spec, forms = self.gather(described, "sharing values")[source]
        tensors = dense if self._rank == source else [wire.empty_tensor(form) for form in forms]
        self.broadcast_(tensors, source)
        return wire.decode_tree(spec, tensors)

    def broadcast_(self, tensors: Iterable[Tensor], source: int) -> None:
        """Overwrite dense CPU tensors in every process with one rank's tensors."""
        options = distributed.BroadcastOptions()
        options.rootRank = source
        with self._all("sharing tensors (collect, state_dict, predict)") as finish:
            for tensor in tensors:
                if tensor.numel():
                    finish(self._group.broadcast([wire.tensor_bytes(tensor)], options))

    @torch.no_grad()
    def copy_weights(self, module: nn.Module, source: int) -> None:
        """Overwrite the weights and statistics of a module with one rank's."""
        tensors = [v for v in module.state_dict().values() if isinstance(v, Tensor)]
        dense = [wire.to_dense(tensor) for tensor in tensors]
        self.broadcast_(dense, source)
        if self._rank != source:
            for tensor, value in zip(tensors, dense, strict=True):
                tensor.copy_(value)

    def clock_offset(self) -> float:
        """Return the seconds by which the first process's ``perf_counter`` is ahead.

        Assumes that the quickest of several exchanges is symmetric: exact to about 0.1 ms.
        """
        offsets = [(0.0, 0.0)] if self._rank == 0 else []
        with self._all("comparing clocks") as finish:
            for other in range(1, self._size):
                for _ in range(8 if self._rank in (0, other) else 0):
                    value = torch.zeros(1, dtype=torch.float64)
                    if self._rank == 0:
                        finish(self._group.recv([value], other, 0))
                        value.fill_(time.perf_counter())
                        finish(self._group.send([value], other, 0))
                        continue
                    start = time.perf_counter()
                    finish(self._group.send([value], 0, 0))
                    finish(self._group.recv([value], 0, 0))
                    end = time.perf_counter()
                    offsets.append((end - start, float(value) - (start + end) / 2))
        return min(offsets)[1]

    @contextmanager
    def _all(self, activity: str) -> Iterator[Finish]:
        with self._operations.among(range(self._size), activity) as finish:
            yield finish


class SoloCollectives:
    """The same operations in a process without others, or without any in common with them."""

    def gather(self, value: Any, purpose: str = "training") -> list[Any]:
        """Return the value of this process in a list; see `Collectives`."""
        return [value]

    def broadcast(self, tree: Tree, source: int = 0) -> Tree:
        """Return the value of this process."""
        return tree

    def copy_weights(self, module: nn.Module, source: int) -> None:
        """Do nothing: there is one process, with its weights."""

    def clock_offset(self) -> float:
        """Return 0: there is one process, with its clock."""
        return 0.0
