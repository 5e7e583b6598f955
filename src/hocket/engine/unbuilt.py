"""The engine before the first batch, so that a session always has an engine."""

from collections.abc import Iterable, Iterator, Sequence

from hocket.engine.engine import Batch, Engine, Pace
from hocket.engine.event import Event
from hocket.errors import HocketError
from hocket.tree import Tree


class UnbuiltPace(Pace):
    """Pace of stages that do not exist yet: the first batch builds them."""

    finished = False

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return no batches."""
        return iter(())


class UnbuiltEngine(Engine):
    """Engine without stages: nothing is done, in flight or sent."""

    stages = ()
    tick_count = 0
    pace = UnbuiltPace()

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Refuse to train.

        See the base.

        Raises:
            HocketError: Always.
        """
        raise HocketError("the stages are built at the first batch; call prepare or step")

    def finish(self) -> list[Event]:
        """Return no events: nothing is in flight."""
        return []

    def state_dict(self) -> list[Tree]:
        """Return no states: there are no stages."""
        return []

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Refuse states, which belong to stages.

        Raises:
            HocketError: Always.
        """
        raise HocketError("the stages are built at the first batch; call prepare or step")
