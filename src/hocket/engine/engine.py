"""What a trainer asks of whatever executes the program."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from hocket.engine.event import Event
from hocket.stage.prediction import Prediction
from hocket.stage.stage import Stage
from hocket.tree import Tree

Batch: TypeAlias = tuple[Tree, Tree]


class Engine(Protocol):
    """Executes a program, or one stage's column of it."""

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages of this process."""

    @property
    def sent_bytes(self) -> int:
        """What was sent to other processes so far."""

    def set_goal(self, epochs: int, length: int | None, *, again: bool = False) -> None:
        """Have every stage train for so many more epochs, of so many batches if known.

        Again: for so many from where an aim was taken before a restart.
        """

    @property
    def finished(self) -> bool:
        """Whether every stage has, at the end of the data."""

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches to train on, one for each tick; placeholders where no data are read."""

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """One tick, at which a batch enters; the events of this process."""

    def finish(self) -> list[Event]:
        """The ticks that complete every batch in flight and apply every gradient."""

    @property
    def tick_count(self) -> int:
        """How many ticks have been done."""

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """What each stage of this process makes of each batch; nothing is kept."""

    def state_dict(self) -> list[Tree]:
        """What each stage of this process remembers between two ticks, as plain values.

        Raises:
            CheckpointError: It was not kept.
        """

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Go on from what the stages of this process remembered, in this engine or another."""


class LockstepEngine(Engine, Protocol):
    """An engine whose stages keep step, so that stages cut elsewhere can go on with it."""

    def start_at(self, now: int, fed: int) -> None:
        """Count ticks and batches on from these, with nothing in flight."""
