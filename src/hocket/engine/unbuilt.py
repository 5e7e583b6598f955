"""The engine before the first batch, so that nobody has to ask whether there is one."""

from collections.abc import Iterable, Iterator, Sequence

from hocket.engine.engine import Batch
from hocket.engine.event import Event
from hocket.errors import HocketError
from hocket.stage.passes.forward_only import Prediction
from hocket.stage.stage import Stage
from hocket.tree import Tree


class UnbuiltEngine:
    """Engine without stages: nothing is done, in flight or sent.

    Attributes:
        stages: None yet.
        sent_bytes: 0.
        tick_count: 0.
        finished: False, as there may be batches to come.
        stopped: False.
    """

    stages: Sequence[Stage] = ()
    sent_bytes = 0
    tick_count = 0
    finished = False
    stopped = False

    def set_goal(self, epochs: int, length: int | None, *, epoch: int, again: bool) -> None:
        """Do nothing: the engine that comes after this one is told.

        Args:
            epochs: Number of epochs.
            length: Batches in an epoch, if known.
            epoch: Epoch of the data that comes next.
            again: True if the goal was set before a restart.
        """

    def end_goal(self) -> None:
        """Do nothing: no goal was set."""

    def stop(self) -> None:
        """Do nothing: no stage runs."""

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return no batches: the first one builds the engine."""
        return iter(())

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Refuse to train.

        Args:
            inputs: Inputs of a batch.
            targets: Targets of the batch.
            epoch: Epoch of the batch.

        Raises:
            HocketError: Always.
        """
        raise HocketError("the stages are built at the first batch; call prepare or step")

    def finish(self) -> list[Event]:
        """Return no events: nothing is in flight."""
        return []

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """Return no predictions: there are no stages."""
        return iter(())

    def state_dict(self) -> list[Tree]:
        """Return no states: there are no stages."""
        return []

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Refuse states, which belong to stages.

        Raises:
            HocketError: Always.
        """
        raise HocketError("the stages are built at the first batch; call prepare or step")
