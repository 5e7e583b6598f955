"""torch.nn.parallel.DistributedDataParallel: each process has a share of the batch."""

import warnings
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining, network_state, share_of_batches


@dataclass(frozen=True)
class DDP:
    """Data parallelism: gradients are averaged over the processes during the backward.

    The defaults are the settings with the least work; with a quarter of a million weights, the
    differences between settings were below the noise. BatchNorm uses the statistics of each
    share, as with DDP's own defaults.

    Attributes:
        processes: Processes that share a batch.
        threads: PyTorch threads in each process.
        static_graph: Tell DDP that every step uses the same parameters in the same order.
        bucket_view: Let gradients be views of the buckets that are sent, which saves a copy.
        bucket_mib: Size of the gradients that are sent together, in MiB.
        broadcast_buffers: Copy the buffers of the first process to all before each forward.
    """

    processes: int
    threads: int
    static_graph: bool = True
    bucket_view: bool = True
    bucket_mib: float = 25
    broadcast_buffers: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the settings of DDP."""
        return {
            "static_graph": self.static_graph,
            "bucket_view": self.bucket_view,
            "bucket_mib": self.bucket_mib,
            "broadcast_buffers": self.broadcast_buffers,
        }

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the whole network on this process's share of the batch."""
        network = workload.build_network()
        with warnings.catch_warnings():
            # PyTorch 2.13 renames broadcast_buffers; earlier ones do not know the new name.
            warnings.simplefilter("ignore", FutureWarning)
            parallel = DistributedDataParallel(
                network,
                static_graph=self.static_graph,
                gradient_as_bucket_view=self.bucket_view,
                bucket_cap_mb=self.bucket_mib,
                broadcast_buffers=self.broadcast_buffers,
            )
        step = workload.loop_step(parallel, share_of_batches(workload, self.processes, rank))
        return PreparedTraining(step, workload.batch, network_state(network))
