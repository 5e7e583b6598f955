"""Batches that a stage has begun: they wait for their backward, or for a target to learn from.

They are stored by number, so that the error for a lost or doubled batch names it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from hocket.errors import CheckpointError, PacketError
from hocket.signals.signal import DeferredLoss
from hocket.stage.late_gradients.linearizer import KeptOutput
from hocket.stage.weight_copies.forward_state import ForwardState
from hocket.transport.packet import Activation
from hocket.tree import Tree, map_tensors


class ForwardedBatch(NamedTuple):
    """One batch between its forward and its backward.

    Attributes:
        activation: Packet that was received.
        leaves: Tensors of the packet, as leaves of the stage's graph; None if none is kept.
        output: Output to differentiate, when the gradient has come.
        differentiable: For each tensor of the output, True if a gradient comes back for it.
        version: Number of updates that the weights of the forward had seen.
        forward_state: State to repeat the forward from; None if it was not kept.
    """

    activation: Activation
    leaves: Tree
    output: KeptOutput
    differentiable: tuple[bool, ...]
    version: int
    forward_state: ForwardState | None

    @staticmethod
    def skipped(
        activation: Activation, differentiable: tuple[bool, ...], version: int
    ) -> "ForwardedBatch":
        """Build the entry of a batch that is not learned from, and was not forwarded.

        Args:
            activation: Packet that was received.
            differentiable: For each tensor of the output, True if a packet comes back for it.
            version: Number of updates that the weights have seen.
        """
        return ForwardedBatch(
            activation.without_values(), None, NOT_KEPT, differentiable, version, None
        )

    def without_tensors(self, output: Tree) -> "ForwardedBatch":
        """Return the entry of a batch whose input will be computed from its output.

        Args:
            output: The output; its structure is kept, with empty tensors.
        """
        structure = map_tensors(lambda tensor: tensor.new_empty(0), output)
        activation = replace(self.activation, values=structure, targets=None)
        return self._replace(activation=activation, leaves=None, output=NOT_KEPT)


NOT_KEPT = KeptOutput(lambda: None)


class InFlight:
    """Batches in flight at one stage."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._batches: dict[int, ForwardedBatch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[ForwardedBatch]:
        return iter(self._batches.values())

    def __getitem__(self, batch: int) -> ForwardedBatch:
        if batch not in self._batches:
            waiting = ", ".join(map(str, self._batches)) or "none"
            raise PacketError(
                f"stage {self._stage}: batch {batch} is to be back-propagated but was not "
                f"forwarded; in flight are {waiting}"
            )
        return self._batches[batch]

    def add(self, forwarded: ForwardedBatch) -> None:
        """Add a batch.

        Raises:
            PacketError: There is one with the same number.
        """
        batch = forwarded.activation.batch
        if batch in self._batches:
            raise PacketError(f"stage {self._stage}: batch {batch} was forwarded twice")
        self._batches[batch] = forwarded

    def pop(self, batch: int) -> ForwardedBatch:
        """Remove a batch for its backward, and return it.

        Raises:
            PacketError: It was not forwarded.
        """
        forwarded = self[batch]
        del self._batches[batch]
        return forwarded

    def clear(self) -> None:
        """Forget all batches, with their graphs."""
        self._batches.clear()

    def state_dict(self) -> list[Tree]:
        """Return the packets of all batches, and the states of their forwards.

        Raises:
            CheckpointError: The state of a forward was not kept.
        """
        return [self._batch_state(forwarded) for forwarded in self]

    def _batch_state(self, forwarded: ForwardedBatch) -> Tree:
        activation, state = forwarded.activation, forwarded.forward_state
        if state is None and not activation.skipped:
            raise CheckpointError(
                f"stage {self._stage}: batch {activation.batch} is in flight, and the weights "
                "and buffers of its forward were not kept; build the trainer with "
                "resumable=True"
            )
        return {
            "activation": vars(activation),
            "differentiable": forwarded.differentiable,
            "version": forwarded.version,
            "past": vars(state) if state is not None else None,
        }


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
