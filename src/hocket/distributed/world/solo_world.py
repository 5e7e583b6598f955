"""World of a single process: the interface of `World` without communication."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported conditionally

from hocket.distributed.failures.phases import Phase
from hocket.distributed.world.collectives import Collectives
from hocket.distributed.world.flags import StoreFlags


class SoloWorld(Collectives):
    """World of a process that trains alone: rank 0 of 1, which has all stages; see `World`.

    Attributes:
        names: Name of this process for messages.
        replicas: Number of replicas of each stage, all in this process.
        is_main: True, as this process prints and writes files.
        reads_data: True, as this process has the first stage.
        rejoined: False, as there are no other processes.
        sent_bytes: 0, as nothing is sent to other processes.
        process_name: None, as there are no other processes.
        slow_timeout_s: Infinity, as this process waits for no other.
        flags: Flags of this process.
    """

    names = ("this process",)
    stage = 0
    replica = 0
    is_main: Literal[True] = True
    reads_data: Literal[True] = True
    rejoined: Literal[False] = False
    sent_bytes: Literal[0] = 0
    process_name: None = None
    slow_timeout_s = math.inf

    def __init__(self, replicas: int = 1) -> None:
        self.replicas = replicas
        self.flags = StoreFlags(HashStore(), self.rank, self.size)

    def local_stages(self, count: int) -> list[tuple[int, int]]:
        """Return stage and replica of all that are in this process, out of ``count`` stages."""
        return [(stage, replica) for replica in range(self.replicas) for stage in range(count)]

    def in_phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Return a context manager that does nothing: no process waits for this one."""
        return nullcontext()

    def common_end(self) -> None:
        """Return None, as there are no replicas that have to agree."""

    def report_failure(self, error: BaseException) -> None:
        """Do nothing: there are no other processes."""

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def close_in_background(self) -> None:
        """Do nothing: there are no connections."""
