"""Packets: the tensors of one batch that cross an edge, with what their receiver must know.

A packet without values belongs to a skipped batch: it crosses every edge like any other, so
that each packet is answered, and no stage learns from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from hocket.distributed.wire import header_value
from hocket.errors import PacketError
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
    """

    kind: ClassVar[str] = "activation"
    tree_names: ClassVar[tuple[str, ...]] = ("values", "targets")

    batch: int
    epoch: int
    values: Tree
    differentiable: tuple[bool, ...]
    targets: Tree
    share: float = 1.0
    exact: tuple[bool, ...] = ()

    @property
    def skipped(self) -> bool:
        """True if the sender has skipped the batch, so that no later stage learns from it."""
        return self.values is None

    def without_values(self) -> "Activation":
        """Return the packet to send for the batch if it is skipped."""
        return replace(self, values=None, targets=None, exact=())

    def with_values(self, values: Tree) -> "Activation":
        """Return the packet with other values, as a codec encodes or decodes them."""
        return replace(self, values=values, exact=())

    def header(self) -> dict[str, Any]:
        """Return what a message says of the packet, without its number and its tensors."""
        return {
            "epoch": self.epoch,
            "differentiable": self.differentiable,
            "share": self.share,
        }

    def trees(self) -> dict[str, Tree]:
        """Return the nested tensors by their names in a message."""
        return {"values": self.values, "targets": self.targets}

    @staticmethod
    def from_message(header: dict[str, Any], trees: Mapping[str, Tree]) -> "Activation":
        """Build the packet of a message.

        Args:
            header: Its header, with the batch as its number.
            trees: Its nested tensors by name.

        Raises:
            PacketError: A value is missing or malformed.
        """
        differentiable = header_value(header, "differentiable", list)
        if any(type(flag) is not bool for flag in differentiable):
            raise PacketError(f"'differentiable' is {differentiable!r:.60}, wanted booleans")
        return Activation(
            batch=header_value(header, "number", int),
            epoch=header_value(header, "epoch", int),
            values=trees["values"],
            differentiable=tuple(differentiable),
            targets=trees["targets"],
            share=header_value(header, "share", float),
        )


@dataclass(frozen=True)
class Gradient:
    """Gradient of the loss with respect to an activation, sent back to the previous stage.

    Attributes:
        batch: Number of the batch, counted from 0 over all epochs.
        values: Gradient of each tensor of the activation, of the same shape, or None for a
            tensor without one; None altogether for a skipped batch.
    """

    kind: ClassVar[str] = "gradient"
    tree_names: ClassVar[tuple[str, ...]] = ("values",)
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

    def header(self) -> dict[str, Any]:
        """Return an empty header: the number of a message is the batch."""
        return {}

    def trees(self) -> dict[str, Tree]:
        """Return the nested tensors by their names in a message."""
        return {"values": self.values}

    @staticmethod
    def from_message(header: dict[str, Any], trees: Mapping[str, Tree]) -> "Gradient":
        """Build the packet of a message.

        Args:
            header: Its header, with the batch as its number.
            trees: Its nested tensors by name.

        Raises:
            PacketError: A value is missing or malformed.
        """
        values = trees["values"]
        if values is not None and not isinstance(values, tuple):
            raise PacketError(f"the gradients are a {type(values).__name__}, wanted a tuple")
        return Gradient(header_value(header, "number", int), values)
