"""The engine that executes the whole program in one process, in order.

Its results define what is correct: every other engine gives the same bits.
"""

from collections.abc import Iterable, Iterator, Sequence

from hocket.engine.engine import Batch, LockstepPace
from hocket.engine.event import Event, Watcher
from hocket.engine.execute import execute
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.engine.stage_streams import StageStreams
from hocket.methods.method import Method
from hocket.program.action import Tick
from hocket.program.program import Program, drain, enter
from hocket.stage.passes.forward_only import Prediction, predict_batch
from hocket.stage.stage import Stage
from hocket.transport.source import Source
from hocket.tree import Tree


class SerialEngine:
    """Executes the program of a method on stages that live in this process.

    Args:
        method: The method.
        stages: All stages, in order.
        source: Source of batches.
        watchers: Called after every action.
        meter: Compares late gradients with the true ones; None to compare none.
        streams: Streams of the stages; None for the current one.
    """

    def __init__(
        self,
        method: Method,
        stages: Sequence[Stage],
        source: Source,
        watchers: Sequence[Watcher],
        meter: GradientErrorMeter | None,
        streams: StageStreams | None,
    ) -> None:
        self.program = Program(method, len(stages))
        self.stages = stages
        self.pace = LockstepPace()
        self._source = source
        self._meter = meter
        self._streams = streams
        self._watchers: list[Watcher] = list(watchers)
        if meter is not None:
            meter.stages = stages
            self._watchers.append(meter)

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Do the tick in which a batch enters.

        See the protocol.
        """
        packet = self._source.send(self.program.batch_count, epoch, inputs, targets)
        if self._meter is not None:
            self._meter.enter(packet.batch, packet.values, packet.targets)
        events = []
        for tick in enter(self.program):
            events += self._execute(self.program.tick_count - 1, tick)
        return events

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """Forward batches for evaluation; return what each stage predicts."""
        return predict_in_order(self.stages, batches)

    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient."""
        events = []
        for tick in drain(self.program):
            events += self._execute(self.program.tick_count - 1, tick)
        return events

    @property
    def tick_count(self) -> int:
        """Number of ticks done."""
        return self.program.tick_count

    def start_at(self, ticks: int, batches: int, updates: int) -> None:
        """Continue a training that other stages began.

        See the protocol.
        """
        for schedule in self.program.schedules:
            schedule.start_at(ticks, batches, updates)

    def state_dict(self) -> list[Tree]:
        """Return the states of each stage and its schedule."""
        pairs = zip(self.stages, self.program.schedules, strict=True)
        parts = [
            stage.state_dict() | {"schedule": schedule.state_dict()}
            for stage, schedule in pairs
        ]
        if self._meter is not None:
            parts[0]["gradient_error"] = self._meter.state_dict()
        return parts

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Continue from the states of the stages of an engine of the same program."""
        schedules = self.program.schedules
        for stage, schedule, part in zip(self.stages, schedules, parts, strict=True):
            schedule.load_state_dict(part["schedule"])
            stage.load_state_dict(part)
        if self._meter is not None:
            self._meter.load_state_dict(parts[0].get("gradient_error", {}))

    def _execute(self, number: int, tick: Tick) -> list[Event]:
        stages, watchers = self.stages, self._watchers
        if self._meter is not None:
            self._meter.before(number, tick, flushed=self.program.flushed)
        if self._streams is None:
            return [execute(stages[action.stage], action, number, watchers) for action in tick]
        events = []
        with self._streams.tick():
            for action in tick:
                with self._streams.stage(action.stage):
                    events.append(execute(stages[action.stage], action, number, watchers))
        return events


def predict_in_order(stages: Sequence[Stage], batches: Iterable[Batch]) -> Iterator[Prediction]:
    """Forward batches through stages one after the other; return what each predicts."""
    for inputs, targets in batches:
        values, ensemble = inputs, None
        for stage in stages:
            prediction = predict_batch(stage.core, values, targets, ensemble)
            yield prediction
            values, ensemble = prediction.output, prediction.ensemble
