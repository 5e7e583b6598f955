"""Losses of a stage's signal that wait for the targets to learn from.

They are stored by the number of their batch, so that the error for a lost one names it.
"""

from dataclasses import dataclass

from hocket.errors import PacketError
from hocket.signals.signal import DeferredLoss
from hocket.transport.packet import Activation
from hocket.tree import Tree


@dataclass(frozen=True)
class DeferredTarget:
    """One batch whose target has not come back yet.

    Attributes:
        loss: Loss of the signal's network, given the target; None if the batch is skipped.
        activation: Packet that the stage received.
        output: Output of the stage, detached.
    """

    loss: DeferredLoss | None
    activation: Activation
    output: Tree


class DeferredTargets:
    """Batches of one stage whose targets have not come back yet."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._waiting: dict[int, DeferredTarget] = {}

    def add(self, deferred: DeferredTarget) -> None:
        """Add a batch."""
        self._waiting[deferred.activation.batch] = deferred

    def skip(self, activation: Activation) -> None:
        """Add a batch that is not learned from, though a packet comes back for it."""
        self.add(DeferredTarget(None, activation.without_values(), None))

    def pop(self, batch: int) -> DeferredTarget:
        """Remove a batch whose target has come, and return it.

        Raises:
            PacketError: There is no such batch.
        """
        if batch not in self._waiting:
            raise PacketError(f"stage {self._stage}: batch {batch} does not wait for a target")
        return self._waiting.pop(batch)

    def state_dict(self) -> list[Tree]:
        """Return the packets and the outputs that the losses are built from."""
        return [
            {"activation": vars(deferred.activation), "output": deferred.output}
            for deferred in self._waiting.values()
        ]
