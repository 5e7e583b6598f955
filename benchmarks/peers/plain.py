"""Plain back-propagation: in one process, or in several that know nothing of each other."""

from dataclasses import dataclass
from typing import Any

from benchmarks.harness.workload import Workload
from benchmarks.peers.peer import Training


@dataclass(frozen=True)
class Plain:
    """The loop that anyone writes.

    Attributes:
        processes: More than one is the limit of the machine: so much it does at the same time
            if nobody waits for anybody.
        threads: Of PyTorch, in each process.
    """

    processes: int
    threads: int

    def about(self) -> dict[str, Any]:
        """Nothing was chosen."""
        return {}

    def prepare(self, work: Workload, rank: int) -> Training:
        """The same in every process: the whole network on the whole batch."""
        network = work.in_format()
        step = work.loop(network, work.batch_of_noise())
        return Training(step, self.processes * work.batch, dict(network.named_parameters()))
