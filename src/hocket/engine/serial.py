"""The whole program in one process, in order: what it computes defines what is correct."""

from collections.abc import Iterable, Iterator, Sequence

from hocket.engine.engine import Batch
from hocket.engine.event import Event, Watcher
from hocket.engine.execute import execute
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.methods.method import Method
from hocket.program import Program, Tick, drain
from hocket.stage.prediction import Prediction
from hocket.stage.stage import Stage
from hocket.transport.source import Source
from hocket.tree import Tree


class SerialEngine:
    """Executes the program of a method on stages that live in this process.

    Args:
        method: The method.
        stages: All stages, in order.
        source: Where batches enter.
        watchers: Called after every action.
        compare: Compares late gradients with the true ones.
    """

    def __init__(
        self,
        method: Method,
        stages: Sequence[Stage],
        source: Source,
        watchers: Sequence[Watcher] = (),
        compare: GradientErrorMeter | None = None,
    ) -> None:
        self.program = Program(method, len(stages))
        self.stages = stages
        self._source = source
        self._compare = compare
        self._watchers: list[Watcher] = list(watchers)
        if compare is not None:
            compare.stages = stages
            self._watchers.append(compare)

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """One tick, at which a batch enters."""
        packet = self._source.send(self.program.batch_count, epoch, inputs, targets)
        if self._compare is not None:
            self._compare.enter(packet.batch, packet.values, packet.targets)
        return self._execute(self.program.tick_count, self.program.tick())

    @property
    def sent_bytes(self) -> int:
        """Nothing is sent anywhere."""
        return 0

    def set_goal(self, epochs: int, length: int | None, *, again: bool = False) -> None:
        """Nothing to do: all stages train for as long as batches enter."""

    @property
    def finished(self) -> bool:
        """Always: no stage falls behind."""
        return True

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches to train on, one for each tick."""
        return iter(batches)

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """What each stage makes of each batch; nothing is kept."""
        return predict_in_order(self.stages, batches)

    def finish(self) -> list[Event]:
        """The ticks that complete every batch in flight and apply every gradient."""
        events = []
        for tick in drain(self.program):
            events += self._execute(self.program.tick_count - 1, tick)
        return events

    @property
    def tick_count(self) -> int:
        """How many ticks have been done."""
        return self.program.tick_count

    def start_at(self, now: int, fed: int) -> None:
        """Count ticks and batches on from these, with nothing in flight."""
        for column in self.program.schedules:
            column.start_at(now, fed)

    def state_dict(self) -> list[Tree]:
        """What each stage remembers, with its column of the program."""
        pairs = zip(self.stages, self.program.schedules, strict=True)
        parts = [
            stage.state_dict() | {"column": column.state_dict()} for stage, column in pairs
        ]
        if self._compare is not None:
            parts[0]["compare"] = self._compare.state_dict()
        return parts

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Go on from what the stages of an engine of the same program remembered."""
        for stage, column, part in zip(self.stages, self.program.schedules, parts, strict=True):
            column.load_state_dict(part["column"])
            stage.load_state_dict(part)
        if self._compare is not None:
            self._compare.load_state_dict(parts[0].get("compare", {}))

    def _execute(self, now: int, tick: Tick) -> list[Event]:
        events = []
        if self._compare is not None:
            self._compare.before(tick)
        for action in tick:
            events.append(execute(self.stages[action.stage], action, now, self._watchers))
        return events


def predict_in_order(stages: Sequence[Stage], batches: Iterable[Batch]) -> Iterator[Prediction]:
    """What stages in a row make of each batch, one after the other."""
    for inputs, targets in batches:
        value, votes = inputs, None
        for stage in stages:
            answer = stage.predict(value, targets, votes)
            yield answer
            value, votes = answer.output, answer.votes
