"""Stages at their own pace in one process: a simulation of the times at which they would run.

Equal seeds give equal turns and equal bits. At equal rates every stage finds what the one
before it has just sent, and the training is that of stages that keep step.
"""

from collections.abc import Iterable, Iterator, Sequence

from hocket.engine.async_clock import EventClock, StageSpeeds
from hocket.engine.async_stage import AsyncStage, DataEpoch
from hocket.engine.engine import Batch
from hocket.engine.event import Event
from hocket.engine.serial import predict_in_order
from hocket.stage.prediction import Prediction
from hocket.stage.stage import Stage
from hocket.transport.source import Source
from hocket.tree import Tree


class AsyncSimulation:
    """Gives stages their turns in the order of simulated time.

    Args:
        runners: All stages, in order.
        source: Where batches enter.
        passes: The data as the first stage goes through them.
        pace: How fast each is.
    """

    def __init__(
        self,
        runners: Sequence[AsyncStage],
        source: Source,
        passes: DataEpoch,
        pace: StageSpeeds,
    ) -> None:
        self._runners = runners
        self._source = source
        self._passes = passes
        self._clock = EventClock(pace)
        self._now = 0

    @property
    def stages(self) -> Sequence[Stage]:
        """All stages, in order."""
        return [runner.stage for runner in self._runners]

    @property
    def tick_count(self) -> int:
        """How many turns the first stage has had."""
        return self._now

    @property
    def sent_bytes(self) -> int:
        """Nothing is sent anywhere."""
        return 0

    def set_goal(self, epochs: int, length: int | None, *, again: bool = False) -> None:
        """Have each stage learn for so many more epochs of its own, of so many batches."""
        self._passes.length = length or self._passes.length
        for runner in self._runners:
            runner.set_goal(epochs, again=again)

    @property
    def finished(self) -> bool:
        """Whether every stage has learned enough."""
        return all(runner.finished for runner in self._runners)

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches to train on, one for each turn of the first stage."""
        count = 0
        for batch in batches:
            yield batch
            count += 1
        self._passes.length = self._passes.length or count

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """A turn of the first stage, at which a batch enters, and all turns until its next."""
        self._passes.epoch = epoch
        self._source.send(self._runners[0].turns, epoch, inputs, targets)
        # Before the first batch nothing can be drawn; after that it is the first stage's turn.
        events = self._others() + self._turn() + self._others()
        self._now += 1
        return events

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """What each stage makes of each batch; nothing is kept."""
        return predict_in_order(self.stages, batches)

    def finish(self) -> list[Event]:
        """Apply gradients that were too few for an update; nothing else is in flight."""
        return [event for runner in self._runners for event in runner.final_update(self._now)]

    def state_dict(self) -> list[Tree]:
        """What each stage remembers; with the first one, the clock of all."""
        parts = [runner.state_dict() for runner in self._runners]
        parts[0]["clock"] = self._clock.state_dict()
        return parts

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Go on from what the same stages remembered, at the same pace."""
        for runner, part in zip(self._runners, parts, strict=True):
            runner.load_state_dict(part)
        self._clock.load_state_dict(parts[0]["clock"])
        self._now = self._runners[0].turns

    def _others(self) -> list[Event]:
        events = []
        while self._clock.upcoming != 0:
            events += self._turn()
        return events

    def _turn(self) -> list[Event]:
        return self._runners[self._clock.next()].take_turn(self._now)
