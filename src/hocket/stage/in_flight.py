"""Batches that a stage has begun, until their backward, or until a target to learn from."""

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

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

    def without_tensors(self, output: Tree) -> "ForwardedBatch":
        """Return the entry of a batch whose input will be computed from its output."""
        structure = map_tensors(lambda tensor: tensor.new_empty(0), output)
        activation = replace(self.activation, values=structure, targets=None)
        return self._replace(activation=activation, leaves=None, output=NOT_KEPT)


NOT_KEPT = KeptOutput(lambda: None)
InFlight: TypeAlias = dict[int, ForwardedBatch]
"""Batches between their forward and their backward, by number."""


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
