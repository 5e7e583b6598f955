"""One stage's column of the program in this process; neighbours are other processes.

It does what :class:`hocket.engine.serial.Serial` does for this stage, in the same order, and
waits only where an action needs a packet that is not there yet.
"""

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from hocket.distributed.world import World
from hocket.engine.engine import Batch
from hocket.engine.event import Event, Watcher
from hocket.engine.execute import execute
from hocket.engine.lookahead import BatchAnnouncer, predict_stage
from hocket.errors import DataError
from hocket.methods.method import Method
from hocket.program import Action, StageSchedule, drain
from hocket.stage.prediction import Prediction
from hocket.stage.stage import Stage
from hocket.transport.connection import Connection, Lookahead
from hocket.transport.source import Source
from hocket.tree import Tree, map_tensors, tensors


class DistributedEngine:
    """Executes one stage's part of a program, beside others that do the same.

    Args:
        method: The method.
        stage: The stage of this process.
        world: This process among the others.
        source: Where batches enter, at the first stage.
        before: The connection to the stage before, if there is one.
        after: The connection to the stage after, if there is one.
        horizon: Until when batches are known to enter; the ports share it.
        watchers: Called after every action.
    """

    def __init__(
        self,
        method: Method,
        stage: Stage,
        world: World,
        source: Source,
        before: Connection | None,
        after: Connection | None,
        horizon: Lookahead,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.stages = [stage]
        self._column = StageSchedule(method, world.stages, stage.index)
        self._world = world
        self._source = source
        self._before = before
        self._after = after
        self._horizon = horizon
        self._watchers = watchers
        # A packet's word of the ticks to come must reach the last stage before it needs it.
        self._ahead = (world.stages - 1) * method.forward_delay + 2
        self._announce = BatchAnnouncer(before, after)
        world.on_close(self._close)

    def set_goal(self, epochs: int, length: int | None, *, again: bool = False) -> None:
        """Nothing to do: all stages train for as long as batches enter."""

    @property
    def finished(self) -> bool:
        """Always: no stage falls behind."""
        return True

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches to train on, one for each tick; placeholders but at the first stage."""
        return self._announce(batches, self._horizon, self._column.tick_count, self._ahead)

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """One tick, at which a batch enters.

        Raises:
            DataError: The batch has fewer inputs than there are replicas.
        """
        if self._before is None:
            share, own = self._share((inputs, targets))
            self._source.send(self._column.batch_count, epoch, *own, share)
        return self._execute(self._column.tick_count, self._column.tick())

    def finish(self) -> list[Event]:
        """The ticks that complete every batch in flight and apply every gradient."""
        events = []
        for actions in drain(self._column):
            events += self._execute(self._column.tick_count - 1, actions)
        return events

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """What this stage makes of each batch; nothing is kept."""
        return predict_stage(self.stages[0], self._before, self._after, self._announce, batches)

    @property
    def tick_count(self) -> int:
        """How many ticks have been done."""
        return self._column.tick_count

    def start_at(self, now: int, fed: int) -> None:
        """Count ticks and batches on from these, with nothing in flight."""
        self._column.start_at(now, fed)
        self._horizon.tick = now - 1

    def state_dict(self) -> list[Tree]:
        """What the stage remembers, with its column of the program."""
        return [self.stages[0].state_dict() | {"column": self._column.state_dict()}]

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Go on from what such a stage remembered; what was under way is sent again."""
        (part,) = parts
        self._column.load_state_dict(part["column"])
        self._horizon.tick = self._column.tick_count - 1
        self.stages[0].load_state_dict(part)

    @property
    def sent_bytes(self) -> int:
        """What was sent to the neighbours so far."""
        return sum(c.sent_bytes for c in (self._before, self._after) if c is not None)

    def _close(self) -> None:
        """Part from the neighbours."""
        for connection in (self._before, self._after):
            if connection is not None:
                connection.close()

    def _share(self, batch: Batch) -> tuple[float, Batch]:
        """What part of a batch is this replica's: how much, and which."""
        replica, replicas = self._world.replica, self._world.replicas
        if replicas == 1:
            return 1.0, batch
        whole = len(tensors(batch)[0])
        if whole < replicas:
            raise DataError(
                f"a batch of {whole} cannot be shared by {replicas} replicas; use larger "
                "batches, or drop a short last one"
            )
        first, last = (whole * r // replicas for r in (replica, replica + 1))

        def part(tensor: Tensor) -> Tensor:
            shared = tensor.dim() and len(tensor) == whole
            return tensor[first:last] if shared else tensor

        return (last - first) / whole, map_tensors(part, batch)

    def _execute(self, now: int, actions: list[Action]) -> list[Event]:
        events = []
        stage = self.stages[0]
        self._horizon.tick = now
        for action in actions:
            self._world.failures.set_activity(f"executing {action} in tick {now}")
            event = execute(stage, action, now, self._watchers)
            self._world.failures.set_activity(f"going on after {action} in tick {now}")
            events.append(event)
        return events
