"""Packets: the tensors of one batch that cross an edge, with what their receiver must know.

A packet without values belongs to a skipped batch: it crosses every edge like any other, so
that each packet is answered, and no stage learns from it.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from hocket.tree import Tree


@dataclass(frozen=True)
class Activation:
    """Output of a stage for one batch, sent to the next stage with the batch's targets.

    Attributes:
        batch: Number of the batch, counted from 0 over all epochs.
        epoch: Number of its epoch, counted from 0.
        values: The output, detached from its graph; None for a skipped batch.
        differentiable: For each tensor of ``values``, whether the sender wants its gradient.
        targets: The targets of the batch.
        share: Fraction of the batch that this packet holds; below 1 where replicas of a stage
            divide the batch among them.
        exact: For each tensor of ``values``, whether no codec may change it, as it is a mask, a
            table or a weight; empty if there is none, and behind the codec.
        network_input: The input of the network, where the signal of the receiver needs it.
    """

    kind: ClassVar[str] = "activation"
    sent: ClassVar[tuple[str, ...]] = (
        "epoch", "values", "differentiable", "targets", "share", "network_input",
    )  # fmt: skip

    batch: int
    epoch: int
    values: Tree
    differentiable: tuple[bool, ...]
    targets: Tree
    share: float = 1.0
    exact: tuple[bool, ...] = ()
    network_input: Tree = None

    @property
    def skipped(self) -> bool:
        """True if the sender has skipped the batch, so that no later stage learns from it."""
        return self.values is None

    def without_values(self) -> "Activation":
        """Return the packet to send for the batch if it is skipped."""
        return replace(self, values=None, targets=None, exact=(), network_input=None)

    def with_values(self, values: Tree) -> "Activation":
        """Return the packet with other values, as a codec encodes or decodes them."""
        return replace(self, values=values, exact=())


@dataclass(frozen=True)
class Gradient:
    """Gradient of the loss with respect to an activation, sent back to the previous stage.

    Attributes:
        batch: Number of the batch, counted from 0 over all epochs.
        values: Gradient of each tensor of the activation, of the same shape, or None for a
            tensor without one; None altogether for a skipped batch. The tensors of the
            activation follow if the previous stage computes its input from them.
    """

    kind: ClassVar[str] = "gradient"
    sent: ClassVar[tuple[str, ...]] = ("values",)
    exact: ClassVar[tuple[bool, ...]] = ()

    batch: int
    values: tuple[Tensor | None, ...] | None

    @property
    def skipped(self) -> bool:
        """True if the sender has skipped the batch, so that no earlier stage learns from it."""
        return self.values is None

    def with_values(self, values: Tree) -> "Gradient":
        """Return the packet with other values, as a codec encodes or decodes them."""
        return replace(self, values=values)
