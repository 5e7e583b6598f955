"""The engine that simulates, in one process, stages that run at their own pace.

Equal seeds give equal turns and equal bits. At equal speeds every stage draws what the one
before it has just sent, and the training is as with stages that keep step.
"""

from collections.abc import Sequence
from typing import Any

from hocket.engine.async_stage import AsyncStage
from hocket.engine.engine import Engine
from hocket.engine.event import Event
from hocket.transport.mailbox import Source
from hocket.tree import Tree


class TurnOrder:
    """Order of the turns of all stages, in simulated time, at equal intervals for each stage.

    Of turns at the same time the first stage's comes first.

    >>> clock = TurnOrder((1, 0.5, 2))
    >>> [clock.next() for _ in range(7)]
    [2, 0, 2, 2, 0, 1, 2]
    """

    def __init__(self, speeds: Sequence[float]) -> None:
        self._speeds = speeds
        self._taken = [0] * len(speeds)

    @property
    def upcoming(self) -> int:
        """Stage whose turn is next."""
        # From the numbers of turns, as sums of fractions would drift apart at equal speeds.
        pairs = zip(self._taken, self._speeds, strict=True)
        times = [(taken + 1) / speed for taken, speed in pairs]
        return times.index(min(times))

    def next(self) -> int:
        """Take the next turn; return its stage."""
        stage = self.upcoming
        self._taken[stage] += 1
        return stage

    def state_dict(self) -> dict[str, Any]:
        """Return the turns taken by each stage."""
        return {"taken": list(self._taken)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a clock of the same speeds."""
        self._taken = list(state["taken"])


class AsyncSimulation(Engine):
    """Lets all stages take their turns in the order of simulated time."""

    def __init__(
        self, stages: Sequence[AsyncStage], source: Source, speeds: Sequence[float]
    ) -> None:
        self.stages = [stage.stage for stage in stages]
        self._stages = stages
        self._source = source
        self._clock = TurnOrder(speeds)

    @property
    def tick_count(self) -> int:
        """Number of turns that the first stage has taken."""
        return self._stages[0].turns

    @property
    def reached_goal(self) -> bool:
        """True once every stage has reached its goal."""
        return all(stage.finished for stage in self._stages)

    def set_goal(self, epochs: int, length: int | None, *, epoch: int, again: bool) -> None:
        """See the base."""
        for stage in self._stages:
            stage.set_goal(epochs, length, epoch=epoch, again=again)

    def end_goal(self) -> None:
        """Let every stage train for as long as batches enter."""
        for stage in self._stages:
            stage.end_goal()

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Take a turn of the first stage, and all until its next one; see the base."""
        for stage in self._stages:
            stage.enter(epoch)
        first = self._stages[0]
        self._source.send(first.turns, first.epoch, inputs, targets)
        # Before the first batch nothing can be drawn; after that it is the first stage's turn.
        tick = self.tick_count
        return self._others(tick) + self._turn(tick) + self._others(tick)

    def finish(self) -> list[Event]:
        """Apply gradients that were too few for an update; nothing else is in flight."""
        return [
            event for stage in self._stages for event in stage.final_update(self.tick_count)
        ]

    def state_dict(self) -> list[Tree]:
        """Return the state of each stage; the first one's has the clock of all."""
        parts = [stage.state_dict() for stage in self._stages]
        parts[0]["clock"] = self._clock.state_dict()
        return parts

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Continue from the states of the same stages at the same speeds."""
        for stage, part in zip(self._stages, parts, strict=True):
            stage.load_state_dict(part)
        self._clock.load_state_dict(parts[0]["clock"])

    def _others(self, tick: int) -> list[Event]:
        events = []
        while self._clock.upcoming != 0:
            events += self._turn(tick)
        return events

    def _turn(self, tick: int) -> list[Event]:
        return self._stages[self._clock.next()].take_turn(tick)
