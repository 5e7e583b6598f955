"""One stage's column of the program in this process; neighbours are other processes.

It does what :class:`hocket.engine.serial.Serial` does for this stage, in the same order, and
waits only where an action needs a packet that is not there yet.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from torch import Tensor

from hocket.engine.engine import Batch
from hocket.engine.trace import Event, Watcher
from hocket.errors import DataError
from hocket.method import Method
from hocket.program import Action, Column, finish
from hocket.relay.memory import Edge
from hocket.relay.p2p import Connection, Horizon
from hocket.relay.packet import Activation
from hocket.stage.stage import Stage
from hocket.tree import Tree, copied, map_tensors, tensors
from hocket.world import World

NOTHING: Batch = (None, None)
"""Stands for a batch in processes that do not read the data."""


class Distributed:
    """Executes one stage's part of a program, beside others that do the same.

    Args:
        method: The method.
        stage: The stage of this process.
        world: This process among the others.
        source: The edge from which the first stage receives its batches.
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
        source: Edge,
        before: Connection | None,
        after: Connection | None,
        horizon: Horizon,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.stages = [stage]
        self._column = Column(method, world.stages, stage.index)
        self._world = world
        self._source = source
        self._before = before
        self._after = after
        self._horizon = horizon
        self._watchers = watchers
        # A packet's word of the ticks to come must reach the last stage before it needs it.
        self._ahead = (world.stages - 1) * method.forward_delay + 2
        self._openings = 0
        world.at_end(self._close)

    def feed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches to train on, one for each tick; placeholders but at the first stage."""
        return self._announced(batches, self._horizon, self._column.now, self._ahead)

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """One tick, at which a batch enters.

        Raises:
            DataError: The batch has fewer inputs than there are replicas.
        """
        if self._before is None:
            share, own = self._share((inputs, targets))
            self._source.upper().send(
                Activation(
                    batch=self._column.fed,
                    epoch=epoch,
                    values=own[0],
                    differentiable=tuple(False for _ in tensors(inputs)),
                    targets=own[1],
                    share=share,
                )
            )
        return self._execute(self._column.now, self._column.tick())

    def finish(self) -> list[Event]:
        """The ticks that complete every batch in flight and apply every gradient."""
        events = []
        for actions in finish(self._column):
            events += self._execute(self._column.now - 1, actions)
        return events

    def predict(self, batches: Iterable[Batch]) -> Iterator[tuple[Tree, Tree]]:
        """What the network makes of each batch, beside its targets, at the last stage only."""
        horizon = Horizon()
        for number, given in enumerate(self._announced(batches, horizon, 0, ahead=2)):
            inputs, targets = (
                given if self._before is None else self._passed_on(number, horizon)
            )
            output = self.stages[0].predict(inputs)
            if self._after is None:
                yield output, targets
            else:
                until = {"until": horizon.until}
                self._after.send("evaluation", number, until, values=output, targets=targets)

    @property
    def now(self) -> int:
        """How many ticks have been done."""
        return self._column.now

    def begin_at(self, now: int, fed: int) -> None:
        """Count ticks and batches on from these, with nothing in flight."""
        self._column.begin_at(now, fed)
        self._horizon.now = now - 1

    def state(self) -> list[Tree]:
        """What the stage remembers, with its column of the program."""
        return [self.stages[0].state() | {"column": self._column.state()}]

    def load(self, parts: Sequence[Tree]) -> None:
        """Go on from what such a stage remembered; what was under way is sent again."""
        (part,) = parts
        self._column.load(part["column"])
        self._horizon.now = self._column.now - 1
        self.stages[0].load(part)

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
        """What part of a batch is this replica's, and a copy of it.

        Copied, as the caller may fill the same memory with the next batch.
        """
        replica, replicas = self._world.replica, self._world.replicas
        if replicas == 1:
            return 1.0, copied(batch)
        whole = len(tensors(batch)[0])
        if whole < replicas:
            raise DataError(
                f"a batch of {whole} cannot be shared by {replicas} replicas; use larger "
                "batches, or drop a short last one"
            )
        first, last = (whole * r // replicas for r in (replica, replica + 1))

        def part(tensor: Tensor) -> Tensor:
            shared = tensor.dim() and len(tensor) == whole
            return tensor[first:last].clone() if shared else tensor.clone()

        return (last - first) / whole, map_tensors(part, batch)

    def _passed_on(self, number: int, horizon: Horizon) -> Batch:
        assert self._before is not None
        parcel = self._before.take("evaluation", number)
        horizon.until = parcel.header["until"]
        device = self._before.device
        return parcel.tree("values", device), parcel.tree("targets", device)

    def _announced(
        self, batches: Iterable[Batch], horizon: Horizon, start: int, ahead: int
    ) -> Iterator[Batch]:
        """Batches at the first stage, which reads ahead; as many placeholders at the others.

        Every stage goes on until what the horizon says, and hears of a new one in time.
        """
        number, self._openings = self._openings, self._openings + 1
        if self._before is not None:
            horizon.until = self._before.take("opening", number).header["until"]
            self._open(number, horizon)
            while start < horizon.until:
                yield NOTHING
                start += 1
            return
        rest = iter(batches)
        queue = deque(islice(rest, ahead))
        horizon.until = start + len(queue)
        self._open(number, horizon)
        while queue:
            yield queue.popleft()
            start += 1
            queue.extend(islice(rest, 1))
            horizon.until = start + len(queue)

    def _open(self, number: int, horizon: Horizon) -> None:
        if self._after is not None:
            self._after.send("opening", number, {"until": horizon.until})

    def _execute(self, now: int, actions: list[Action]) -> list[Event]:
        events = []
        stage = self.stages[0]
        self._horizon.now = now
        for action in actions:
            self._world.alarm.doing(f"executing {action} in tick {now}")
            try:
                with stage.recorder.span(action.kind, action.batch, now):
                    report = stage.execute(action)
            except Exception as error:
                error.add_note(
                    f"(stage {action.stage}, batch {action.batch}, tick {now}: {action})"
                )
                raise
            self._world.alarm.doing(f"going on after {action} in tick {now}")
            event = Event(now, action, report)
            for watch in self._watchers:
                watch(event, stage)
            events.append(event)
        return events
