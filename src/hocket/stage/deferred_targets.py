"""Lessons of a stage's signal that wait for their targets.

They are found by the number of their batch, so one that was lost is an error that names it.
"""

from dataclasses import dataclass

from hocket.errors import PacketError
from hocket.signals.signal import DeferredLoss
from hocket.transport.packet import Activation
from hocket.tree import Tree


@dataclass(frozen=True)
class DeferredTarget:
    """A lesson that waits for its target, with the batch's input and the stage's output.

    Without a lesson it is one of a batch that is skipped.
    """

    loss: DeferredLoss | None
    activation: Activation
    output: Tree


class DeferredTargets:
    """The lessons of one stage."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._untaught: dict[int, DeferredTarget] = {}

    def add(self, untaught: DeferredTarget) -> None:
        """Keep one until its target comes."""
        self._untaught[untaught.activation.batch] = untaught

    def skip(self, activation: Activation) -> None:
        """There is none for this batch, though a packet will come for it."""
        self.add(DeferredTarget(None, activation.without_values(), None))

    def pop(self, batch: int) -> DeferredTarget:
        """Take one out; PacketError if there is none."""
        if batch not in self._untaught:
            raise PacketError(
                f"stage {self._stage}: no lesson waits for a target of batch {batch}"
            )
        return self._untaught.pop(batch)

    def state_dict(self) -> list[Tree]:
        """What the lessons are made from, as plain values."""
        return [
            {"activation": vars(own.activation), "output": own.output}
            for own in self._untaught.values()
        ]
