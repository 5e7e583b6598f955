"""Plain back-propagation in one process, or in several independent ones."""

from dataclasses import dataclass
from typing import Any

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining, network_state


@dataclass(frozen=True)
class PlainLoop:
    """A plain PyTorch training loop.

    Attributes:
        processes: Number of processes. Several show the limit of the machine: the throughput of
            processes that never wait for each other.
        threads: PyTorch threads in each process.
    """

    processes: int
    threads: int

    def describe(self) -> dict[str, Any]:
        """Return nothing, as there are no choices."""
        return {}

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the whole network on the whole batch, the same in every process."""
        network = workload.build_network()
        step = workload.loop_step(network, workload.batches())
        return PreparedTraining(step, self.processes * workload.batch, network_state(network))
