"""torch.nn.parallel.DistributedDataParallel: each process has a share of the batch."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining, network_state

SETTINGS: Mapping[str, Any] = {
    "static_graph": True,
    "gradient_as_bucket_view": True,
    "bucket_cap_mb": 25.0,
    "broadcast_buffers": False,
}
"""Those with the least work: the graph is the same in every step, gradients are views of the
buckets that are sent, and buffers are not copied."""


@dataclass(frozen=True)
class DDP:
    """Data parallelism: gradients are averaged over the processes during the backward.

    With a quarter of a million weights, the differences between settings were below the noise.
    BatchNorm uses the statistics of each share, as with DDP's own defaults.

    Attributes:
        processes: Processes that share a batch.
        threads: PyTorch threads in each process.
    """

    processes: int
    threads: int

    def describe(self) -> dict[str, Any]:
        """Return the settings of DDP."""
        return dict(SETTINGS)

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the whole network on this process's share of the batch."""
        network = workload.build_network()
        with warnings.catch_warnings():
            # PyTorch 2.13 renames broadcast_buffers; earlier ones do not know the new name.
            warnings.simplefilter("ignore", FutureWarning)
            parallel = DistributedDataParallel(network, **SETTINGS)
        shares = (
            (inputs.chunk(self.processes)[rank], targets.chunk(self.processes)[rank])
            for inputs, targets in workload.batches(multiple=self.processes)
        )
        step = workload.loop_step(parallel, shares)
        return PreparedTraining(step, workload.batch, network_state(network))
