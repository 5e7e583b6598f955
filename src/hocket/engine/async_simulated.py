"""Stages at their own pace in one process: a simulation of the times at which they would run.

Equal seeds give equal turns and equal bits. At equal rates every stage finds what the one
before it has just sent, and the training is that of stages that keep step.
"""

from collections.abc import Iterable, Iterator, Sequence

from hocket.engine.async_clock import Clock, Pace
from hocket.engine.async_stage import Passes, Runner
from hocket.engine.engine import Batch
from hocket.engine.event import Event
from hocket.engine.serial import answers
from hocket.stage.prediction import Answer
from hocket.stage.stage import Stage
from hocket.transport.source import Source
from hocket.tree import Tree


class Free:
    """Gives stages their turns in the order of simulated time.

    Args:
        runners: All stages, in order.
        source: Where batches enter.
        passes: The data as the first stage goes through them.
        pace: How fast each is.
    """

    def __init__(
        self, runners: Sequence[Runner], source: Source, passes: Passes, pace: Pace
    ) -> None:
        self._runners = runners
        self._source = source
        self._passes = passes
        self._clock = Clock(pace)
        self._now = 0

    @property
    def stages(self) -> Sequence[Stage]:
        """All stages, in order."""
        return [runner.stage for runner in self._runners]

    @property
    def now(self) -> int:
        """How many turns the first stage has had."""
        return self._now

    @property
    def sent_bytes(self) -> int:
        """Nothing is sent anywhere."""
        return 0

    def aim(self, epochs: int, length: int | None, *, again: bool = False) -> None:
        """Have each stage learn for so many more epochs of its own, of so many batches."""
        self._passes.length = length or self._passes.length
        for runner in self._runners:
            runner.aim(epochs, again=again)

    @property
    def done(self) -> bool:
        """Whether every stage has learned enough."""
        return all(runner.over for runner in self._runners)

    def feed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
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

    def predict(self, batches: Iterable[Batch]) -> Iterator[Answer]:
        """What each stage makes of each batch; nothing is kept."""
        return answers(self.stages, batches)

    def finish(self) -> list[Event]:
        """Apply gradients that were too few for an update; nothing else is in flight."""
        return [event for runner in self._runners for event in runner.flush(self._now)]

    def state(self) -> list[Tree]:
        """What each stage remembers; with the first one, the clock of all."""
        parts = [runner.state() for runner in self._runners]
        parts[0]["clock"] = self._clock.state()
        return parts

    def load(self, parts: Sequence[Tree]) -> None:
        """Go on from what the same stages remembered, at the same pace."""
        for runner, part in zip(self._runners, parts, strict=True):
            runner.load(part)
        self._clock.load(parts[0]["clock"])
        self._now = self._runners[0].turns

    def _others(self) -> list[Event]:
        events = []
        while self._clock.upcoming != 0:
            events += self._turn()
        return events

    def _turn(self) -> list[Event]:
        return self._runners[self._clock.next()].turn(self._now)
