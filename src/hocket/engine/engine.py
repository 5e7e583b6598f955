"""Engines, which execute a program for a trainer."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from typing import TypeAlias

from hocket.engine.event import Event
from hocket.errors import HocketError
from hocket.program.action import Action, Tick
from hocket.program.program import Program, drain, enter
from hocket.stage.passes.forward_only import Prediction, predict_batch
from hocket.stage.stage import Stage
from hocket.stage.steps import in_turn
from hocket.tree import Tree

Batch: TypeAlias = tuple[Tree, Tree]


class Engine(ABC):
    """Executes a program, or the part of it that one stage has.

    Stages that run freely train until each has reached its goal. Stages that keep step have no
    goal: they train while batches enter, and stop with them.

    Attributes:
        stages: Stages of this process; of the first replica, if it has several.
    """

    stages: Sequence[Stage]

    @property
    def all_stages(self) -> Sequence[Stage]:
        """Stages of all replicas in this process, one replica after another."""
        return self.stages

    @property
    @abstractmethod
    def tick_count(self) -> int:
        """Number of ticks done; of stages that run freely, turns of the first one here."""

    @abstractmethod
    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Do the tick in which a batch enters; return the events of this process.

        A batch that fills a group which is flushed takes the ticks in which the group leaves.

        Args:
            inputs: Inputs of the batch, with tensors of shape (B, ...).
            targets: Targets of the batch.
            epoch: Epoch that the batch belongs to.
        """

    @abstractmethod
    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient."""

    @property
    def reached_goal(self) -> bool:
        """True if every stage has trained for all its epochs, at the end of the data."""
        return True

    @property
    def stopped(self) -> bool:
        """True if stages that run freely were stopped where they were, before their goal."""
        return False

    # Stages that keep step have no goal, and nothing to do in these three methods.

    def set_goal(  # noqa: B027
        self, epochs: int, length: int | None, *, epoch: int, again: bool
    ) -> None:
        """Let every stage train for a number of epochs more.

        Args:
            epochs: Number of epochs.
            length: Batches in an epoch, if known.
            epoch: Epoch of the data that comes next.
            again: True to count from where the goal was set before a restart.
        """

    def end_goal(self) -> None:  # noqa: B027
        """Let every stage train for as long as batches enter, now that its goal is reached."""

    def stop(self) -> None:  # noqa: B027
        """Let all stages that run freely stop where they are."""

    def entering(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return a batch for each tick; a placeholder in processes that read no data."""
        return iter(batches)

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """Forward batches for evaluation; return what each stage of this process predicts."""
        for inputs, targets in batches:
            values, ensemble = inputs, None
            for stage in self.stages:
                prediction = predict_batch(stage.core, values, targets, ensemble)
                yield prediction
                values, ensemble = prediction.output, prediction.ensemble

    @abstractmethod
    def state_dict(self) -> list[Tree]:
        """Return the states of all stages of this process between two ticks, as plain values.

        Raises:
            CheckpointError: It was not kept.
        """

    @abstractmethod
    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Continue from the states of the stages of this process, in this engine or another."""


class UnbuiltEngine(Engine):
    """Engine without stages: nothing is done, in flight or sent."""

    stages = ()
    tick_count = 0
    reached_goal = False

    def entering(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return no batches: the first one builds the stages."""
        return iter(())

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Refuse to train; see the base.

        Raises:
            HocketError: Always.
        """
        raise HocketError("the stages are built at the first batch; call prepare or step")

    def finish(self) -> list[Event]:
        """Return no events: nothing is in flight."""
        return []

    def state_dict(self) -> list[Tree]:
        """Return no states: there are no stages."""
        return []

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Refuse states, which belong to stages.

        Raises:
            HocketError: Always.
        """
        raise HocketError("the stages are built at the first batch; call prepare or step")


class LockstepEngine(Engine):
    """An engine whose stages keep step, so that stages cut elsewhere can continue with it.

    Args:
        program: Program of the stages of this process.
        stages: These stages, in order.
    """

    def __init__(self, program: Program, stages: Sequence[Stage]) -> None:
        self.program = program
        self.stages = stages

    @property
    def tick_count(self) -> int:
        """Number of ticks done."""
        return self.program.tick_count

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """See the base."""
        self._send(inputs, targets, epoch)
        return [event for tick in enter(self.program) for event in self._execute(tick)]

    def finish(self) -> list[Event]:
        """Complete every batch in flight, and what is under way between replicas."""
        events = [event for tick in drain(self.program) for event in self._execute(tick)]
        last = self.program.batch_count - 1
        for stage in self.stages:
            if late := [Action("U", stage.index, last)] * stage.updater.late_updates:
                events += self._execute(tuple(late))
        stages, count = self.all_stages, len(self.stages)
        for number in range(count):
            in_turn([stage.end_exchange() for stage in stages[number::count]])
        return events

    def start_at(self, ticks: int, batches: int, updates: int) -> None:
        """Continue a training that other stages began, with nothing in flight.

        Args:
            ticks: Number of the next tick.
            batches: Number of the next batch.
            updates: Number of updates that the weights have seen.
        """
        for schedule in self.program.schedules:
            schedule.start_at(ticks, batches, updates)

    def state_dict(self) -> list[Tree]:
        """Return the states of all stages and their schedules."""
        schedules = cycle(self.program.schedules)
        return [
            stage.state_dict() | {"schedule": schedule.state_dict()}
            for stage, schedule in zip(self.all_stages, schedules, strict=False)
        ]

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Continue from the states of the stages of an engine of the same program."""
        schedules = cycle(self.program.schedules)
        for stage, part, schedule in zip(self.all_stages, parts, schedules, strict=False):
            schedule.load_state_dict(part["schedule"])
            stage.load_state_dict(part)

    @abstractmethod
    def _send(self, inputs: Tree, targets: Tree, epoch: int) -> None:
        """Send a batch to the first stage, if this process has it; see `step`."""

    @abstractmethod
    def _execute(self, tick: Tick) -> list[Event]:
        """Execute the actions of a tick, which the program has counted already."""
