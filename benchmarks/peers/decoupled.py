"""Hocket itself, with a stage in each process, or replicas of stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining, network_state
from hocket.distributed.replicas.meet import as_meet
from hocket.methods.method import Method
from hocket.partition import Plan


@dataclass(frozen=True)
class Decoupled:
    """A method on as many processes as there are stages, or replicas of them.

    Attributes:
        method: The method, with its extra delay.
        threads: PyTorch threads in each process.
        plan: The cut of the network.
        replicas: Replicas of each stage.
        options: More options of `Trainer`.
    """

    method: Method
    threads: int
    plan: Plan
    replicas: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """Number of processes, one for each replica of a stage."""
        return self.plan.stages * self.replicas

    @property
    def period(self) -> int:
        """Number of steps after which the same steps follow again."""
        meet = as_meet(self.options.get("meet"))
        return self.method.accumulate * (1 if meet is None else meet.every)

    def describe(self) -> dict[str, Any]:
        """Return the cuts and the delay of the first stage in ticks; of one stage, replicas."""
        if self.plan.stages == 1:
            return {"replicas": self.replicas}
        delay = self.method.delay(0, self.plan.stages)
        return {"cuts": list(self.plan.cuts), "delay": delay}

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the stage of this process, and fill the pipeline."""
        trainer = workload.build_trainer(self.method, self.plan, **self.options)
        (stage,) = trainer.stages
        state = network_state(trainer.network, [stage.module])
        step = workload.trainer_step(trainer)
        for _ in range(workload.warmup_steps(self.method)):
            step()
        return PreparedTraining(
            step, workload.batch, state, finish=trainer.finish, recorder=stage.recorder
        )
