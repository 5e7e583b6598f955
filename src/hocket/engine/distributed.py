"""The engine that executes the schedule of one stage; its neighbours are other processes.

It does what :class:`hocket.engine.serial.SerialEngine` does for this stage, in the same order,
and waits only where an action needs a packet that is not there yet.
"""

from collections.abc import Iterable, Iterator, Sequence

from hocket.distributed.world.world import World
from hocket.engine.engine import Batch, LockstepEngine
from hocket.engine.event import Event, Watcher, execute
from hocket.engine.lookahead import BatchAnnouncer
from hocket.errors import DataError
from hocket.methods.method import Method
from hocket.program.action import Action, Tick
from hocket.program.program import Program
from hocket.signals.losses import count_targets
from hocket.stage.passes.forward_only import Prediction
from hocket.stage.stage import Stage
from hocket.transport.mailbox import Source
from hocket.transport.processes.connection import Connection
from hocket.transport.processes.connection_ports import Lookahead
from hocket.tree import Tree, count_samples, take_samples, tensors


class DistributedEngine(LockstepEngine):
    """Executes the part of a program that one stage has, while other processes do the rest.

    Args:
        method: The method.
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
        method: Method,
        stage: Stage,
        world: World,
        source: Source,
        previous: Connection | None,
        following: Connection | None,
        lookahead: Lookahead,
        watchers: Sequence[Watcher],
    ) -> None:
        super().__init__(Program(method, world.stages, only=stage.index), [stage])
        self._announce = BatchAnnouncer(previous, following)
        # News of the batches to come must reach the last stage before it needs them.
        self._ahead = method.entry(world.stages - 1) + 2
        self._world = world
        self._source = source
        self._previous = previous
        self._lookahead = lookahead
        self._watchers = watchers
        self._executed: set[str] = set()  # kinds of actions that cannot be the first any more
        for connection in (previous, following):
            if connection is not None:
                world.add_link(connection)

    def finish(self) -> list[Event]:
        """Complete every batch in flight, and what is under way between replicas."""
        events = super().finish()
        stage, program = self.stages[0], self.program
        late = [Action("U", stage.index, program.batch_count - 1)] * stage.updater.late_updates
        events += self._execute(program.tick_count - 1, tuple(late))
        stage.end_exchange()
        return events

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return a batch for each tick at the first stage, placeholders at the others."""
        return self._announce(batches, self._lookahead, self.program.batch_count, self._ahead)

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """Forward batches for evaluation; return what this stage predicts."""
        return self._announce.predict(self.stages[0], batches)

    def start_at(self, ticks: int, batches: int, updates: int) -> None:
        """See the protocol."""
        super().start_at(ticks, batches, updates)
        self._lookahead.tick = ticks - 1

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Continue from the state of such a stage; packets under way are sent again."""
        (part,) = parts
        self._lookahead.tick = part["schedule"]["tick_count"] - 1
        super().load_state_dict(parts)

    def _send(self, inputs: Tree, targets: Tree, epoch: int) -> None:
        """Send this replica's part of a batch to the first stage.

        Raises:
            DataError: The batch has fewer inputs than there are replicas.
        """
        if self._previous is None:
            share, (inputs, targets) = self._share((inputs, targets))
            self._source.send(self.program.batch_count, epoch, inputs, targets, share)

    def _share(self, batch: Batch) -> tuple[float, Batch]:
        """Return this replica's fraction of a batch, and that part of it.

        The losses of the parts, weighted with their fractions, add up to the loss of the batch:
        the fraction counts class indices that are not ignored, or else samples. Replicas that
        meet rarely have whole losses, unless all their class indices are ignored.

        Raises:
            DataError: The batch has fewer samples than there are replicas, or its targets
                cannot be divided.
        """
        replica, replicas = self._world.replica, self._world.replicas
        if replicas == 1:
            return 1.0, batch

        # The samples of this replica.
        whole = count_samples(batch)
        if whole < replicas:
            raise DataError(
                f"a batch of {whole} cannot be shared by {replicas} replicas; use larger "
                "batches, or drop a short last one"
            )
        first, last = (whole * r // replicas for r in (replica, replica + 1))

        # Inputs and targets of these samples.
        inputs, targets = batch
        is_tuple = type(targets) is tuple  # perhaps of each sample, as of zip(*samples)
        own = take_samples(
            (inputs, list(targets) if is_tuple else targets), slice(first, last), whole
        )
        if is_tuple:
            own = own[0], tuple(own[1])
        if tensors(batch[1]) and _shapes(own[1]) == _shapes(batch[1]):
            raise DataError(
                f"replicas cannot divide the targets of a batch of {whole}: none of their "
                f"tensors has that length, and no list that many entries: {_shapes(batch[1])}"
            )

        # The fraction of the loss that they are.
        share = (last - first) / whole
        ignored = self.stages[0].ignored_target
        counted, all_counted = (count_targets(each[1], ignored) for each in (own, batch))
        if counted is not None and all_counted:
            share = int(counted) / int(all_counted)
        if self.stages[0].core.meetings is not None:
            share = float(share > 0)
        return share, own

    def _execute(self, number: int, tick: Tick) -> list[Event]:
        events = []
        stage, failures = self.stages[0], self._world.failures
        self._lookahead.tick = number
        for action in tick:
            # The first one of a kind may compile, or load libraries.
            first = action.kind not in self._executed
            activity = f"executing {action} in tick {number}" + first * " for the first time"
            failures.set_activity(activity, slow=first)
            events.append(execute(stage, action, number, self._watchers))
            self._executed.add(action.kind)
        failures.set_activity(f"between tick {number} and the next one", slow=True, idle=True)
        return events


def _shapes(tree: Tree) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors(tree)]
