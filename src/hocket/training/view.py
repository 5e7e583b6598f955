"""The part of a trainer that its callbacks may use."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import nn

from hocket.engine.engine import Engine
from hocket.partition import Plan
from hocket.stage.stage import Stage
from hocket.training.results.metrics import EvaluationResult


class TrainerView(Protocol):
    """A trainer during a ``fit``, as its callbacks see it; ``hocket.Trainer`` documents it.

    Callbacks depend on this protocol, and the trainer on them.
    """

    @property
    def network(self) -> nn.Module:
        """The network, with its own names."""

    @property
    def plan(self) -> Plan | None:
        """Cuts of the network; None for stages given as modules."""

    @property
    def stages(self) -> Sequence[Stage]:
        """Stages at work in this process."""

    @property
    def stage_count(self) -> int:
        """Number of stages."""

    @property
    def engine(self) -> Engine:
        """Engine that executes the program."""

    @property
    def epoch(self) -> int:
        """Number of epochs done."""

    @property
    def has_common_epochs(self) -> bool:
        """True unless stages run freely in separate processes."""

    @property
    def is_main_process(self) -> bool:
        """True in the one process that should print and write files."""

    @property
    def process_name(self) -> str | None:
        """Name of this process among several; None if it is alone."""

    def request_stop(self) -> None:
        """Let the current ``fit`` end after this epoch, in all processes."""

    def evaluate(self, batches: Iterable[Any]) -> EvaluationResult:
        """Measure the network as it is now; all processes must call it."""

    def predict(self, batches: Iterable[Any]) -> list[Any]:
        """Return the outputs of the network as it is now; all processes must call it."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of stages."""

    def collect(self) -> None:
        """Bring the weights of all stages into the network; all processes must call it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of all stages, by the network's names; all must call it."""
