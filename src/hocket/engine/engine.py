"""The protocol of engines, which execute a program for a trainer, and of their pace."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from hocket.engine.event import Event
from hocket.stage.passes.forward_only import Prediction
from hocket.stage.stage import Stage
from hocket.tree import Tree

Batch: TypeAlias = tuple[Tree, Tree]


class Pace(Protocol):
    """Batches that the stages take, and the goal at which they end."""

    @property
    def finished(self) -> bool:
        """True if every stage has trained for all its epochs, at the end of the data."""

    @property
    def stopped(self) -> bool:
        """True if stages that run freely were stopped where they were, before their goal."""

    def set_goal(self, epochs: int, length: int | None, *, epoch: int, again: bool) -> None:
        """Let every stage train for a number of epochs more.

        Args:
            epochs: Number of epochs.
            length: Batches in an epoch, if known.
            epoch: Epoch of the data that comes next.
            again: True to count from where the goal was set before a restart.
        """

    def end_goal(self) -> None:
        """Let every stage train for as long as batches enter, now that its goal is reached."""

    def stop(self) -> None:
        """Let all stages that run freely stop where they are."""

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return a batch for each tick; a placeholder in processes that read no data."""


class Engine(Protocol):
    """Executes a program, or the schedule of one of its stages."""

    @property
    def stages(self) -> Sequence[Stage]:
        """Stages of this process."""

    @property
    def tick_count(self) -> int:
        """Number of ticks done."""

    @property
    def pace(self) -> Pace:
        """Batches that the stages take, and their goal."""

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Do the tick in which a batch enters; return the events of this process.

        A batch that fills a group which is flushed takes the ticks in which the group leaves.

        Args:
            inputs: Inputs of the batch, with tensors of shape (B, ...).
            targets: Targets of the batch.
            epoch: Epoch that the batch belongs to.
        """

    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient."""

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """Forward batches for evaluation; return what each stage of this process predicts."""

    def state_dict(self) -> list[Tree]:
        """Return the state of each stage of this process between two ticks, as plain values.

        Raises:
            CheckpointError: It was not kept.
        """

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Continue from the states of the stages of this process, in this engine or another."""


@runtime_checkable
class LockstepEngine(Engine, Protocol):
    """An engine whose stages keep step, so that stages cut elsewhere can continue with it."""

    def start_at(self, ticks: int, batches: int, updates: int) -> None:
        """Continue a training that other stages began, with nothing in flight.

        Args:
            ticks: Number of the next tick.
            batches: Number of the next batch.
            updates: Number of updates that the weights have seen.
        """


class LockstepPace:
    """Pace of stages that keep step: they have no goal, and train while batches enter.

    Attributes:
        finished: True, as no stage falls behind.
        stopped: False, as all stages stop with the batches.
    """

    finished = True
    stopped = False

    def set_goal(self, epochs: int, length: int | None, *, epoch: int, again: bool) -> None:
        """Do nothing.

        See the protocol.
        """

    def end_goal(self) -> None:
        """Do nothing: no goal was set."""

    def stop(self) -> None:
        """Do nothing: all stages stop with the batches."""

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return the batches, one for each tick."""
        return iter(batches)
