"""A method of Hocket, one process for each stage: what the peers are peers of."""

from dataclasses import dataclass
from typing import Any

from hocket.bench.peers.peer import Training
from hocket.bench.work import Work
from hocket.cut import Plan
from hocket.method import Method


@dataclass(frozen=True)
class Decoupled:
    """Stages that all work at the same time, in a world of as many processes.

    Attributes:
        method: The method, with its slack.
        processes: How many stages there are.
        threads: Of PyTorch, in each process.
        plan: Where the network is cut.
    """

    method: Method
    processes: int
    threads: int
    plan: Plan

    def about(self) -> dict[str, Any]:
        """Cuts, and what the delay of the first stage comes to."""
        delay = self.method.delay(0, self.processes)
        return {"cuts": list(self.plan.cuts), "delay": delay}

    def prepare(self, work: Work, rank: int) -> Training:
        """This process's stage, with the pipeline full."""
        trainer = work.trainer(self.method, self.plan)
        step = work.decoupled(trainer)
        for _ in range(work.until_full(self.method)):
            step()
        own = {id(p) for stage in trainer.stages for p in stage.module.parameters()}
        weights = {n: p for n, p in trainer.network.named_parameters() if id(p) in own}
        return Training(step, work.batch, weights)
