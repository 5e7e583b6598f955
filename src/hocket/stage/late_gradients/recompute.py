"""Linearization at the present weights, by a forward that is repeated in the backward."""

import torch
from torch import nn

from hocket.methods.method import Statistics
from hocket.stage.late_gradients.stash_or_live import Editable, KeptOutput
from hocket.stage.weight_copies.forward_state import (
    ForwardState,
    RunLayers,
    forward_without_buffer_updates,
    present_state,
    run_layers,
)
from hocket.tree import Tree, copy_tensors, tensors


class Recompute:
    """Forwards the kept input again, at the current weights (FR, arXiv 1807.04511).

    Args:
        statistics: Passes that update BatchNorm's running statistics.
        editable: Returns an input that the layers may edit.
        run: Calls the layers.
        keep_buffers: Forward again from the buffers of the first forward.
    """

    copies = None
    forbids_inner_forward = False
    recomputes = True

    def __init__(
        self,
        statistics: Statistics,
        editable: Editable = copy_tensors,
        run: RunLayers = run_layers,
        *,
        keep_buffers: bool = False,
    ) -> None:
        self._statistics = statistics
        self._editable = editable
        self._run = run
        self._keep_buffers = keep_buffers

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward without a graph; the graph is built when the gradient has come."""
        again = self.rebuild_output(module, leaves, self.forward_state(module))
        with torch.no_grad():
            output = self._run(module, self._editable(leaves))
        return output, again

    def needs_gradient(self, module: nn.Module, leaves: Tree, output: Tree) -> list[bool]:
        """Forward once more, with a graph, to see which tensors have one; see the protocol."""
        again = forward_without_buffer_updates(module, self._editable(leaves))
        return [tensor.requires_grad for tensor in tensors(again)]

    def forward_state(self, module: nn.Module) -> ForwardState:
        """Return the buffers if they are kept; the backward uses its present weights."""
        return present_state(module, {}) if self._keep_buffers else ForwardState({}, {})

    def rebuild_output(
        self, module: nn.Module, leaves: Tree, state: ForwardState
    ) -> KeptOutput:
        """Return the output, for which the input will be forwarded again; see the protocol.

        Without buffers in the state, the forward begins with the present ones.
        """

        def recompute() -> Tree:
            inputs = self._editable(leaves)
            if self._statistics == "both":
                return self._run(module, inputs)
            return forward_without_buffer_updates(module, inputs, self._run, state.buffers)

        return KeptOutput(recompute)

    def after_update(self) -> None:
        """Do nothing: inputs do not depend on this stage's weights."""
