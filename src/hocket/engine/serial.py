"""The engine that executes the whole program in one process, in order.

Its results define what is correct: every other engine gives the same bits.
"""

from collections.abc import Sequence

from hocket.engine.engine import LockstepEngine
from hocket.engine.event import Event, Watcher, execute
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.engine.stage_streams import StageStreams
from hocket.methods.method import Method
from hocket.program.action import Tick
from hocket.program.program import Program
from hocket.stage.stage import Stage
from hocket.transport.mailbox import Source
from hocket.tree import Tree


class SerialEngine(LockstepEngine):
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
        super().__init__(Program(method, len(stages)), stages)
        self._source = source
        self._meter = meter
        self._streams = streams
        self._watchers: list[Watcher] = list(watchers)
        if meter is not None:
            meter.stages = stages
            self._watchers.append(meter)

    def state_dict(self) -> list[Tree]:
        """Return the states of each stage and its schedule, and of the meter."""
        parts = super().state_dict()
        if self._meter is not None:
            parts[0]["gradient_error"] = self._meter.state_dict()
        return parts

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Continue from the states of the stages of an engine of the same program."""
        super().load_state_dict(parts)
        if self._meter is not None:
            self._meter.load_state_dict(parts[0].get("gradient_error", {}))

    def _send(self, inputs: Tree, targets: Tree, epoch: int) -> None:
        packet = self._source.send(self.program.batch_count, epoch, inputs, targets)
        if self._meter is not None:
            self._meter.enter(packet.batch, packet.values, packet.targets)

    def _execute(self, tick: Tick) -> list[Event]:
        number = self.program.tick_count - 1
        stages, watchers = self.stages, self._watchers
        if self._meter is not None:
            self._meter.before(number, tick, flushed=self.program.schedules[0].flushed)
        if self._streams is None:
            return [execute(stages[action.stage], action, number, watchers) for action in tick]
        events = []
        with self._streams.tick():
            for action in tick:
                with self._streams.stage(action.stage):
                    events.append(execute(stages[action.stage], action, number, watchers))
        return events
