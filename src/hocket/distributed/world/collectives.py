"""Operations in which several processes of a training take part at the same time."""

import json
import time
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parameter import is_lazy

from hocket.distributed import wire
from hocket.distributed.failures.detector import Finish
from hocket.distributed.world.membership import Group
from hocket.errors import WorldError
from hocket.tree import Tree


class Collectives:
    """Operations of all processes of a training; a process alone has its own values.

    Attributes:
        rank: Rank of this process.
        size: Number of processes.
    """

    rank = 0
    size = 1
    _group: Group | None = None
    """Group of all processes; None in one that is alone, or was started again alone."""

    def collective(self, activity: str) -> AbstractContextManager[Finish]:
        """Return a context manager for operations of all processes; see `FailureDetector`."""
        raise NotImplementedError("a process alone has no operations with others")

    def gather(self, value: Any, purpose: str = "training") -> list[Any]:
        """Return the JSON values of all processes in the order of ranks.

        Args:
            value: The value of this process.
            purpose: What this process does, in a few words; all must do the same.

        Raises:
            WorldError: They do different things.
        """
        if self._group is None:
            return [value]
        text = json.dumps([purpose, value]).encode()
        lengths = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(self.size)]

        # Gather the lengths, and then texts that spaces make as long as the longest.
        with self.collective(purpose) as finish:
            finish(self._group.allgather([lengths], [torch.tensor([len(text)], device="cpu")]))
            padded = bytearray(text.ljust(max(map(int, lengths))))
            data = torch.frombuffer(padded, dtype=torch.uint8)
            rows = [torch.empty_like(data) for _ in range(self.size)]
            finish(self._group.allgather([rows], [data]))

        # Compare the purposes.
        pairs = [json.loads(row.numpy().tobytes()) for row in rows]
        if len({purpose for purpose, _ in pairs}) > 1:
            named = [f"rank {rank} is {purpose}" for rank, (purpose, _) in enumerate(pairs)]
            raise WorldError(
                f"the processes do different things at the same time: {', '.join(named)}; call "
                "resume (with a folder that all see), fit, save, evaluate, predict, gather, "
                "collect and state_dict in all processes alike"
            )
        return [value for _, value in pairs]

    def broadcast(self, tree: Tree, source: int = 0) -> Tree:
        """Return the value of one process in every process, and ignore the others.

        Args:
            tree: The value of this process, with tensors on the CPU.
            source: Rank of the process whose value it is to be.
        """
        if self._group is None:
            return tree
        leaves: list[Tensor] = []
        spec = wire.encode_tree(tree, leaves) if self.rank == source else None
        dense = [wire.to_dense(tensor) for tensor in leaves]
        described = [spec, [wire.tensor_spec(tensor) for tensor in dense]]
        spec, forms = self.gather(described, "sharing values")[source]
        tensors = dense if self.rank == source else [wire.empty_tensor(form) for form in forms]
        with self.collective("sharing values (evaluate, predict, collect)") as finish:
            for tensor in tensors:
                overwrite(tensor, self._group, source, finish)
        return wire.decode_tree(spec, tensors)

    @torch.no_grad()
    def copy_weights(self, module: nn.Module, source: int) -> None:
        """Overwrite the weights and buffers of a module with one rank's.

        A tensor that only that rank has, as its forward has added it, is left out.
        """
        if self._group is None:
            return
        named = [*module.named_parameters(), *module.named_buffers()]
        own = {name: tensor for name, tensor in named if not is_lazy(tensor)}
        for name, value in self.broadcast(own, source).items():
            if self.rank == source or name not in own:
                continue
            tensor = own[name]
            if (tensor.shape, tensor.dtype) == (value.shape, value.dtype):
                tensor.copy_(value)
            else:  # a buffer that a forward there has replaced
                tensor.data = value.to(tensor.device)

    def clock_offset(self) -> float:
        """Return the seconds by which the first process's ``perf_counter`` is ahead.

        Assumes that the quickest of several exchanges is symmetric: exact to about 0.1 ms.
        """
        if self._group is None:
            return 0.0
        offsets = [(0.0, 0.0)] if self.rank == 0 else []
        with self.collective("comparing clocks") as finish:
            for other in range(1, self.size):
                for _ in range(8 if self.rank in (0, other) else 0):
                    value = torch.zeros(1, dtype=torch.float64, device="cpu")
                    if self.rank == 0:
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


def overwrite(tensor: Tensor, group: Group, source: int, finish: Finish) -> None:
    """Overwrite a dense CPU tensor (...) with the one of a process of a group.

    Args:
        tensor: The tensor, which has the same strides in all processes.
        group: The group.
        source: Rank in the group of the process that has the values.
        finish: Waits for an operation.
    """
    options = distributed.BroadcastOptions()
    options.rootRank = source
    if tensor.numel():
        finish(group.broadcast([wire.tensor_bytes(tensor)], options))
