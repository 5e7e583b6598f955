"""The engine that executes the schedule of one stage; its neighbours are other processes.

It does what :class:`hocket.engine.serial.SerialEngine` does for this stage, in the same order,
and waits only where an action needs a packet that is not there yet.
"""

from collections.abc import Iterable, Iterator, Sequence

from hocket.distributed.world.world import World
from hocket.engine.engine import Batch, LockstepEngine
from hocket.engine.event import Event, Watcher, execute
from hocket.engine.lookahead import BatchAnnouncer
from hocket.engine.share import take_share
from hocket.program.action import Tick
from hocket.program.program import Program
from hocket.stage.passes.forward_only import Prediction
from hocket.stage.stage import Stage
from hocket.transport.mailbox import Source
from hocket.transport.processes.connection import Connection
from hocket.transport.processes.connection_ports import Lookahead
from hocket.tree import Tree


class DistributedEngine(LockstepEngine):
    """Executes the part of a program that one stage has, while other processes do the rest.

    Args:
        program: Program of the stage of this process.
        stage: The stage of this process.
        world: This process among the others.
        source: Source of batches, for the first stage.
        previous: Connection to the stage before; None for the first stage.
        following: Connection to the next stage; None for the last stage.
        lookahead: Batches that are known to enter; the ports share it.
        watchers: Called after every action.
    """

    def __init__(
        self,
        program: Program,
        stage: Stage,
        world: World,
        source: Source,
        previous: Connection | None,
        following: Connection | None,
        lookahead: Lookahead,
        watchers: Sequence[Watcher],
    ) -> None:
        super().__init__(program, [stage])
        self._announce = BatchAnnouncer(previous, following)
        # News of the batches to come must reach the last stage before it needs them.
        self._ahead = program.method.entry(world.stages - 1) + 2
        self._world = world
        self._source = source
        self._lookahead = lookahead
        self._watchers = watchers
        self._executed: set[str] = set()  # kinds of actions that cannot be the first any more
        for connection in (previous, following):
            if connection is not None:
                world.add_link(connection)

    def entering(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return a batch for each tick at the first stage, placeholders at the others."""
        return self._announce(batches, self._lookahead, self.program.batch_count, self._ahead)

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """Forward batches for evaluation; return what this stage predicts."""
        return self._announce.predict(self.stages[0], batches)

    def _send(self, inputs: Tree, targets: Tree, epoch: int) -> None:
        """Send this replica's part of a batch to the first stage."""
        if self._world.reads_data:
            batch, world = (inputs, targets), self._world
            fraction, own = take_share(batch, world.replica, world.replicas, self.stages[0])
            self._source.send(self.program.batch_count, epoch, *own, fraction)

    def _execute(self, tick: Tick) -> list[Event]:
        events, number = [], self.program.tick_count - 1
        stage, failures = self.stages[0], self._world.failures
        for action in tick:
            # The first one of a kind may compile, or load libraries.
            first = action.kind not in self._executed
            activity = f"executing {action} in tick {number}" + first * " for the first time"
            failures.set_activity(activity, slow=first)
            events.append(execute(stage, action, number, self._watchers))
            self._executed.add(action.kind)
        failures.set_activity(f"between tick {number} and the next one", slow=True, idle=True)
        return events
