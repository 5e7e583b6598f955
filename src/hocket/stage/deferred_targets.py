"""Lessons of a stage's signal that wait for their targets.

They are found by the number of their batch, so one that was lost is an error that names it.
"""

from dataclasses import dataclass

from hocket.errors import PacketError
from hocket.signals.signal import Lesson
from hocket.transport.packet import Activation
from hocket.tree import Tree


@dataclass(frozen=True)
class Untaught:
    """A lesson that waits for its target, with the batch's input and the stage's output.

    Without a lesson it is one of a batch that is skipped.
    """

    lesson: Lesson | None
    activation: Activation
    output: Tree


class Lessons:
    """The lessons of one stage."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._untaught: dict[int, Untaught] = {}

    def add(self, untaught: Untaught) -> None:
        """Keep one until its target comes."""
        self._untaught[untaught.activation.batch] = untaught

    def skip(self, activation: Activation) -> None:
        """There is none for this batch, though a packet will come for it."""
        self.add(Untaught(None, activation.emptied(), None))

    def pop(self, batch: int) -> Untaught:
        """Take one out; PacketError if there is none."""
        if batch not in self._untaught:
            raise PacketError(
                f"stage {self._stage}: no lesson waits for a target of batch {batch}"
            )
        return self._untaught.pop(batch)

    def state(self) -> list[Tree]:
        """What the lessons are made from, as plain values."""
        return [
            {"activation": vars(own.activation), "output": own.output}
            for own in self._untaught.values()
        ]
