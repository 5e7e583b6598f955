"""One stage at its own pace: its turns, its epochs, and when it has learned enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hocket.engine.event import Event, Watcher
from hocket.engine.execute import execute
from hocket.program import Action
from hocket.stage.stage import Stage
from hocket.transport.replay_buffer import BufferToPrevious
from hocket.tree import Tree


@dataclass
class DataEpoch:
    """The data as the first stage goes through them.

    Attributes:
        epoch: The epoch of the data that the first stage is in.
        length: Batches of an epoch; unknown while the first one has not ended.
    """

    epoch: int = 0
    length: int | None = None


class AsyncStage:
    """Gives a stage its turns, one after the other.

    Args:
        stage: The stage.
        lower: Where it draws from; None for the first stage, whose batches are sent to it.
        passes: The data as the first stage goes through them.
        accumulate: Gradients per update.
        watchers: Called after every action.
    """

    def __init__(
        self,
        stage: Stage,
        lower: BufferToPrevious | None,
        passes: DataEpoch,
        accumulate: int,
        watchers: Sequence[Watcher],
    ) -> None:
        self.stage = stage
        self.turns = 0
        self.learned = 0
        self._lower = lower
        self._passes = passes
        self._accumulate = accumulate
        self._watchers = watchers
        self._gathered = 0
        self._begun = 0  # the epoch from which on it learns for the present goal
        self._goal: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch of its own that the stage is in."""
        return (
            self.learned // self._passes.length if self._passes.length else self._passes.epoch
        )

    @property
    def finished(self) -> bool:
        """Whether the stage has learned enough, and only forwards for those behind it."""
        length = self._passes.length
        return self._goal is not None and bool(length) and self.epoch >= self._goal

    def set_goal(self, epochs: int, *, again: bool = False) -> None:
        """Learn for so many epochs from now on; again, from where the last aim was taken."""
        if not again:
            self._begun = self.epoch
        self._goal = self._begun + epochs

    def state_dict(self) -> Tree:
        """All that the stage remembers between two turns, with its counts."""
        return self.stage.state_dict() | {
            "runner": {
                "turns": self.turns,
                "learned": self.learned,
                "gathered": self._gathered,
                "begun": self._begun,
            }
        }

    def load_state_dict(self, state: Tree) -> None:
        """Go on from what the runner of such a stage remembered."""
        own: dict[str, Any] = state["runner"]
        self.turns, self.learned = own["turns"], own["learned"]
        self._gathered, self._begun = own["gathered"], own["begun"]
        self.stage.load_state_dict(state)

    def take_turn(self, now: int) -> list[Event]:
        """Take a turn, if there is anything to draw; what it came to."""
        number, k = self.turns, self.stage.index
        if self._lower is not None and not self._lower.draw(number, self.epoch):
            return []
        if self.finished:
            events = self.final_update(now)
            self.turns += 1
            forward = Action("F", k, number)
            return [*events, self._execute(forward, now, pass_on=True)]
        self.turns += 1
        self.learned += 1
        self._gathered += 1
        events = [self._execute(Action(kind, k, number), now) for kind in ("F", "B")]
        return events + (self.final_update(now) if self._gathered == self._accumulate else [])

    def final_update(self, now: int) -> list[Event]:
        """Update with what was gathered, however little it is."""
        waiting, self._gathered = self._gathered, 0
        if not waiting:
            return []
        return [self._execute(Action("U", self.stage.index, self.turns - 1), now)]

    def _execute(self, action: Action, now: int, *, pass_on: bool = False) -> Event:
        do = self.stage.pass_on if pass_on else None
        return execute(self.stage, action, now, self._watchers, do)
