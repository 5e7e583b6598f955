"""Hocket itself, with a stage in each process."""

from dataclasses import dataclass
from typing import Any

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining, network_state
from hocket.codecs import Codec
from hocket.methods.method import Method
from hocket.partition import Plan


@dataclass(frozen=True)
class Decoupled:
    """A method on as many processes as there are stages.

    Attributes:
        method: The method, with its extra delay.
        codec: Encoding of what stages send.
        threads: PyTorch threads in each process.
        plan: The cut of the network.
        checksum: Whether tensors are sent with checksums.
    """

    method: Method
    codec: Codec
    threads: int
    plan: Plan
    checksum: bool = True

    @property
    def processes(self) -> int:
        """Number of processes, one for each stage."""
        return self.plan.stages

    def describe(self) -> dict[str, Any]:
        """Return the cuts, and the delay of the first stage in ticks."""
        delay = self.method.delay(0, self.processes)
        return {"cuts": list(self.plan.cuts), "delay": delay}

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the stage of this process, and fill the pipeline."""
        trainer = workload.build_trainer(
            self.method, self.plan, codec=self.codec, checksum=self.checksum
        )
        (stage,) = trainer.stages
        state = network_state(trainer.network, [stage.module])
        step = workload.trainer_step(trainer)
        for _ in range(workload.warmup_steps(self.method)):
            step()
        return PreparedTraining(
            step,
            workload.batch,
            state,
            finish=trainer.finish,
            recorder=stage.recorder,
        )
