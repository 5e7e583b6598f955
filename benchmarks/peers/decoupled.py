"""Hocket itself: a stage in each process."""

from dataclasses import dataclass
from typing import Any

from benchmarks.harness.workload import Workload
from benchmarks.peers.peer import Training
from hocket.methods.method import Method
from hocket.partition import Plan
from hocket.transport.codecs import Codec


@dataclass(frozen=True)
class Decoupled:
    """A method on as many processes as there are stages.

    Attributes:
        method: The method, with its slack.
        codec: How what stages send is written.
        threads: Of PyTorch, in each process.
        plan: Where the network is cut.
        checksum: Whether tensors leave with a checksum.
    """

    method: Method
    codec: Codec
    threads: int
    plan: Plan
    checksum: bool = True

    @property
    def processes(self) -> int:
        """One for each stage."""
        return self.plan.stages

    def about(self) -> dict[str, Any]:
        """Where it is cut, and what the delay of the first stage comes to."""
        delay = self.method.delay(0, self.processes)
        return {"cuts": list(self.plan.cuts), "delay": delay}

    def prepare(self, work: Workload, rank: int) -> Training:
        """This process's stage, its pipeline filled."""
        trainer = work.trainer(self.method, self.plan, codec=self.codec, checksum=self.checksum)
        step = work.decoupled(trainer)
        for _ in range(work.until_full(self.method)):
            step()
        (stage,) = trainer.stages
        weights = dict(stage.module.named_parameters())
        return Training(step, work.batch, weights, stage.recorder)
