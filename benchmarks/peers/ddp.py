"""torch.nn.parallel.DistributedDataParallel: every process has the network, and a share."""

import warnings
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness.workload import Workload
from benchmarks.peers.peer import Training


@dataclass(frozen=True)
class DDP:
    """Data parallelism: gradients are averaged over the processes during the backward.

    The defaults are those that do least; with a quarter of a million weights no setting was
    quicker or slower than the noise. BatchNorm takes the statistics of each share, as it does
    with DDP's own defaults.

    Attributes:
        processes: How many share a batch.
        threads: Of PyTorch, in each process.
        static_graph: Tell DDP that every step uses the same parameters in the same order.
        bucket_view: Let gradients be views of the buckets that are sent, which saves a copy.
        bucket_mib: Gradients that are sent together, in MiB.
        broadcast_buffers: Give all processes the first one's buffers before each forward.
    """

    processes: int
    threads: int
    static_graph: bool = True
    bucket_view: bool = True
    bucket_mib: float = 25
    broadcast_buffers: bool = False

    def about(self) -> dict[str, Any]:
        """The settings of DDP."""
        return {
            "static_graph": self.static_graph,
            "bucket_view": self.bucket_view,
            "bucket_mib": self.bucket_mib,
            "broadcast_buffers": self.broadcast_buffers,
        }

    def prepare(self, work: Workload, rank: int) -> Training:
        """The whole network on this process's share of the batch."""
        network = work.in_format()
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
        inputs, targets = (part.chunk(self.processes)[rank] for part in work.batch_of_noise())
        step = work.loop(parallel, (inputs, targets))
        return Training(step, work.batch, dict(network.named_parameters()))
