"""Batches that a stage has forwarded and whose backward is still to come.

They are found by their number, so one that was lost or doubled is an error that names it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hocket.errors import PacketError
from hocket.relay.packet import Activation
from hocket.stage.linearize import Graph
from hocket.stage.past import Past
from hocket.tree import Tree


@dataclass(frozen=True)
class Forwarded:
    """One batch between its forward and its backward.

    Attributes:
        activation: What was received.
        leaves: Its tensors as leaves of the stage's graph.
        graph: Gives the output to differentiate, when the gradient has come.
        differentiable: For each tensor of the output, whether a gradient comes back for it.
        version: The number of updates that the weights of the forward had seen.
        past: What the forward needs to be done again; None if that was not kept.
    """

    activation: Activation
    leaves: Tree
    graph: Graph
    differentiable: tuple[bool, ...]
    version: int
    past: Past | None


class Pending:
    """The batches in flight at one stage."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._batches: dict[int, Forwarded] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Forwarded]:
        return iter(self._batches.values())

    def add(self, forwarded: Forwarded) -> None:
        """Keep a batch; a second one of the same number raises PacketError."""
        batch = forwarded.activation.batch
        if batch in self._batches:
            raise PacketError(f"stage {self._stage}: batch {batch} was forwarded twice")
        self._batches[batch] = forwarded

    def __getitem__(self, batch: int) -> Forwarded:
        return self._batches[batch]

    def pop(self, batch: int) -> Forwarded:
        """Take a batch out for its backward; PacketError if it was not forwarded."""
        if batch not in self._batches:
            waiting = ", ".join(map(str, self._batches)) or "none"
            raise PacketError(
                f"stage {self._stage}: batch {batch} is to be back-propagated but was not "
                f"forwarded; in flight are {waiting}"
            )
        return self._batches.pop(batch)
