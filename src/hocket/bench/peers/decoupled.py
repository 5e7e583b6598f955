"""Hocket itself: a stage in each process."""

from dataclasses import dataclass
from typing import Any

from hocket.bench.peers.peer import Training
from hocket.bench.work import Work
from hocket.cut import Plan
from hocket.parts import method_of


@dataclass(frozen=True)
class Decoupled:
    """A method on as many processes as there are stages.

    Attributes:
        method: In words.
        threads: Of PyTorch, in each process.
        plan: Where the network is cut.
        slack: Ticks that packets may take longer.
    """

    method: str
    threads: int
    plan: Plan
    slack: int = 0

    @property
    def processes(self) -> int:
        """One for each stage."""
        return self.plan.stages

    def about(self) -> dict[str, Any]:
        """Where it is cut."""
        return {"cuts": list(self.plan.cuts)}

    def prepare(self, work: Work, rank: int) -> Training:
        """This process's stage, its pipeline filled."""
        method = method_of(self.method).slackened(self.slack)
        trainer = work.trainer(method, self.plan)
        step = work.decoupled(trainer)
        for _ in range(work.until_full(method)):
            step()
        return Training(step, work.batch, dict(trainer.stages[0].module.named_parameters()))
