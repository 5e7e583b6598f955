"""A stage at its own pace: its turns, its epochs and its goal."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hocket.engine.event import Event, Watcher
from hocket.engine.execute import execute
from hocket.program import Action
from hocket.stage import forward_only
from hocket.stage.stage import Stage
from hocket.transport.replay_buffer import BufferToPrevious
from hocket.tree import Tree


@dataclass
class DataEpoch:
    """Position of the first stage in the training data.

    Attributes:
        epoch: Epoch of the data that the first stage is in.
        length: Batches in an epoch; None until the first epoch has ended, if it is not known.
    """

    epoch: int = 0
    length: int | None = None


class AsyncStage:
    """A stage that takes its turns one after the other.

    Args:
        stage: The stage.
        draw: Port that draws from the buffer; None for the first stage, which is sent batches.
        data: Position of the first stage in the training data.
        accumulate: Gradients per update.
        watchers: Called after every action.

    Attributes:
        stage: The stage.
        turns: Turns taken.
        trained: Turns in which the stage trained.
    """

    def __init__(
        self,
        stage: Stage,
        draw: BufferToPrevious | None,
        data: DataEpoch,
        accumulate: int,
        watchers: Sequence[Watcher],
    ) -> None:
        self.stage = stage
        self.turns = 0
        self.trained = 0
        self._draw = draw
        self._data = data
        self._accumulate = accumulate
        self._watchers = watchers
        self._accumulated = 0
        self._first_epoch = 0  # epoch at which the present goal was set
        self._goal: int | None = None

    @property
    def epoch(self) -> int:
        """Epoch of its own that the stage is in."""
        return self.trained // self._data.length if self._data.length else self._data.epoch

    @property
    def finished(self) -> bool:
        """True once the stage has reached its goal, and only forwards for those behind it."""
        length = self._data.length
        return self._goal is not None and bool(length) and self.epoch >= self._goal

    def set_goal(self, epochs: int, *, again: bool = False) -> None:
        """Train for a number of epochs; ``again`` counts from where the goal was last set."""
        if not again:
            self._first_epoch = self.epoch
        self._goal = self._first_epoch + epochs

    def state_dict(self) -> Tree:
        """Return the state of the stage between two turns, with its counts."""
        return self.stage.state_dict() | {
            "turns": {
                "turns": self.turns,
                "trained": self.trained,
                "accumulated": self._accumulated,
                "first_epoch": self._first_epoch,
            }
        }

    def load_state_dict(self, state: Tree) -> None:
        """Continue from the state of such a stage."""
        counts: dict[str, Any] = state["turns"]
        self.turns, self.trained = counts["turns"], counts["trained"]
        self._accumulated, self._first_epoch = counts["accumulated"], counts["first_epoch"]
        self.stage.load_state_dict(state)

    def take_turn(self, tick: int) -> list[Event]:
        """Take a turn if there is a packet to draw; return its events."""
        number, k = self.turns, self.stage.index
        if self._draw is not None and not self._draw.draw(number, self.epoch):
            return []
        if self.finished:
            events = self.final_update(tick)
            self.turns += 1
            forward = Action("F", k, number)
            return [*events, self._execute(forward, tick, pass_on=True)]
        self.turns += 1
        self.trained += 1
        self._accumulated += 1
        events = [self._execute(Action(kind, k, number), tick) for kind in ("F", "B")]
        return events + (
            self.final_update(tick) if self._accumulated == self._accumulate else []
        )

    def final_update(self, tick: int) -> list[Event]:
        """Update with the gradients accumulated so far, if there are any."""
        count, self._accumulated = self._accumulated, 0
        if not count:
            return []
        return [self._execute(Action("U", self.stage.index, self.turns - 1), tick)]

    def _execute(self, action: Action, tick: int, *, pass_on: bool = False) -> Event:
        do = partial(forward_only.pass_on, self.stage) if pass_on else None
        return execute(self.stage, action, tick, self._watchers, do)
