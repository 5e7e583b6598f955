"""The engine before the first batch, so that a session always has an engine."""

from collections.abc import Iterable, Iterator, Sequence

from hocket.engine.engine import Batch, LockstepPace
from hocket.engine.event import Event
from hocket.errors import HocketError
from hocket.stage.passes.forward_only import Prediction
from hocket.stage.stage import Stage
from hocket.tree import Tree


class UnbuiltPace(LockstepPace):
    """Pace of stages that do not exist yet.

    Attributes:
        finished: False, as there may be batches to come.
    """

    finished = False

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return no batches: the first one builds the engine."""
        return iter(())


class UnbuiltEngine:
    """Engine without stages: nothing is done, in flight or sent.

    Attributes:
        stages: None yet.
        tick_count: 0.
        pace: Takes no batches.
    """

    stages: Sequence[Stage] = ()
    tick_count = 0
    pace = UnbuiltPace()

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Refuse to train.

        See the protocol.

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
