"""A stage at its own pace: its turns, its epochs and its goal."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from hocket.engine.event import Event, Watcher, execute
from hocket.program.action import Action
from hocket.stage.passes.forward_only import pass_on
from hocket.stage.stage import Stage
from hocket.transport.replay_buffer import BufferToPrevious
from hocket.tree import Tree


class AsyncStage:
    """A stage that takes its turns one after the other.

    Args:
        stage: The stage.
        draw: Port that draws from the buffer; None for the first stage, which is sent batches.
        watchers: Called after every action.

    Attributes:
        stage: The stage.
        turns: Turns taken.
    """

    def __init__(
        self, stage: Stage, draw: BufferToPrevious | None, watchers: Sequence[Watcher]
    ) -> None:
        self.stage = stage
        self.turns = 0
        self._data_epoch = 0  # that the first stage is in
        self._draw = draw
        self._accumulate = stage.core.setup.method.accumulate
        self._watchers = watchers
        self._accumulated = 0
        self._trained = 0  # turns in which the stage trained
        # When the present goal was set.
        self._first_epoch = self._first_trained = 0
        self._length: int | None = None  # of an epoch; None in a loop of the user
        self._goal: int | None = None  # turns in which it is to have trained

    @property
    def epoch(self) -> int:
        """Epoch that the stage is in: its own, or the data's in a loop of the user."""
        if not self._length:
            return self._data_epoch
        return self._first_epoch + (self._trained - self._first_trained) // self._length

    @property
    def finished(self) -> bool:
        """True once the stage has reached its goal, and only forwards for those behind it."""
        return bool(self._length) and self._goal is not None and self._trained >= self._goal

    def set_goal(self, epochs: int, length: int | None, *, epoch: int, again: bool) -> None:
        """Train for a number of whole epochs, which begin now.

        Args:
            epochs: Number of epochs.
            length: Batches in each of them.
            epoch: Epoch of the data that the first stage is in.
            again: True to count from where the goal was set before a restart.
        """
        self._data_epoch = epoch
        if not again:
            self._first_epoch, self._first_trained = self.epoch, self._trained
        self._length = length
        self._goal = self._first_trained + epochs * (length or 0)

    def end_goal(self) -> None:
        """Train for as long as batches enter."""
        self._goal = None

    def enter(self, epoch: int) -> None:
        """Keep the epoch of a batch that enters; without a goal it is the stage's."""
        self._data_epoch = epoch
        if self._goal is None:
            self._length = None

    def state_dict(self) -> Tree:
        """Return the state of the stage between two turns, with its counts."""
        return self.stage.state_dict() | {
            "turns": {
                "turns": self.turns,
                "trained": self._trained,
                "accumulated": self._accumulated,
                "first_epoch": self._first_epoch,
                "first_trained": self._first_trained,
                "length": self._length,
            }
        }

    def load_state_dict(self, state: Tree) -> None:
        """Continue from the state of such a stage."""
        counts: dict[str, Any] = state["turns"]
        self.turns, self._trained = counts["turns"], counts["trained"]
        self._accumulated, self._length = counts["accumulated"], counts["length"]
        self._first_epoch = counts["first_epoch"]
        self._first_trained = counts["first_trained"]
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
            do = partial(pass_on, self.stage.core)
            return [*events, execute(self.stage, forward, tick, self._watchers, do)]
        self.turns += 1
        self._trained += 1
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

    def _execute(self, action: Action, tick: int) -> Event:
        return execute(self.stage, action, tick, self._watchers)
