"""Batches that a stage has forwarded and whose backward is still to come.

They are found by their number, so one that was lost or doubled is an error that names it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hocket.errors import CheckpointError, PacketError
from hocket.stage.forward_state import ForwardState
from hocket.stage.linearize import Graph
from hocket.transport.packet import Activation
from hocket.tree import Tree


@dataclass(frozen=True)
class ForwardedBatch:
    """One batch between its forward and its backward.

    Attributes:
        activation: What was received.
        leaves: Its tensors as leaves of the stage's graph.
        graph: Gives the output to differentiate, when the gradient has come.
        differentiable: For each tensor of the output, whether a gradient comes back for it.
        version: The number of updates that the weights of the forward had seen.
        forward_state: What the forward needs to be done again; None if that was not kept.
    """

    activation: Activation
    leaves: Tree
    graph: Graph
    differentiable: tuple[bool, ...]
    version: int
    forward_state: ForwardState | None

    @staticmethod
    def skipped(
        activation: Activation, differentiable: tuple[bool, ...], version: int
    ) -> "ForwardedBatch":
        """A batch that is not learned from: nothing was computed, and nothing will be."""
        return ForwardedBatch(
            activation.without_values(), None, lambda: None, differentiable, version, None
        )


class InFlight:
    """The batches in flight at one stage."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._batches: dict[int, ForwardedBatch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[ForwardedBatch]:
        return iter(self._batches.values())

    def state_dict(self) -> list[Tree]:
        """What was received and how, as plain values.

        Raises:
            CheckpointError: What a forward needs to be done again was not kept.
        """
        return [self._plain(forwarded) for forwarded in self]

    def _plain(self, forwarded: ForwardedBatch) -> Tree:
        activation, past = forwarded.activation, forwarded.forward_state
        if past is None and not activation.skipped:
            raise CheckpointError(
                f"stage {self._stage}: batch {activation.batch} is in flight, and what the "
                "layers were at its forward was not kept; build the trainer with resumable=True"
            )
        return {
            "activation": vars(activation),
            "differentiable": forwarded.differentiable,
            "version": forwarded.version,
            "past": vars(past) if past is not None else None,
        }

    def add(self, forwarded: ForwardedBatch) -> None:
        """Keep a batch; a second one of the same number raises PacketError."""
        batch = forwarded.activation.batch
        if batch in self._batches:
            raise PacketError(f"stage {self._stage}: batch {batch} was forwarded twice")
        self._batches[batch] = forwarded

    def __getitem__(self, batch: int) -> ForwardedBatch:
        return self._batches[batch]

    def pop(self, batch: int) -> ForwardedBatch:
        """Take a batch out for its backward; PacketError if it was not forwarded."""
        if batch not in self._batches:
            waiting = ", ".join(map(str, self._batches)) or "none"
            raise PacketError(
                f"stage {self._stage}: batch {batch} is to be back-propagated but was not "
                f"forwarded; in flight are {waiting}"
            )
        return self._batches.pop(batch)
