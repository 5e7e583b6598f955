"""Linearization at the present weights, by a forward that is repeated in the backward."""

import torch
from torch import nn

from hocket.methods.method import Statistics
from hocket.stage.forward_state import (
    ForwardState,
    RunLayers,
    forward_without_buffer_updates,
    run_layers,
)
from hocket.stage.linearize import Editable, KeptOutput
from hocket.tree import Tree, copy_tensors, tensors


class Recompute:
    """Forwards the kept input again, at the current weights (FR, arXiv 1807.04511).

    Args:
        statistics: Passes that update BatchNorm's running statistics.
        editable: Returns an input that the layers may edit.
        run: Calls the layers.
    """

    copies = None
    forbids_inner_forward = False
    recomputes = True

    def __init__(
        self,
        statistics: Statistics,
        editable: Editable = copy_tensors,
        run: RunLayers = run_layers,
    ) -> None:
        self._statistics = statistics
        self._editable = editable
        self._run = run

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward without a graph; the graph is built when the gradient has come."""
        with torch.no_grad():
            output = self._run(module, self._editable(leaves))
        return output, self._recomputation(module, leaves)

    def needs_gradient(self, module: nn.Module, leaves: Tree, output: Tree) -> list[bool]:
        """Forward once more, with a graph, and return whether each tensor has one.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            output: Output of the forward.
        """
        again = forward_without_buffer_updates(module, self._editable(leaves))
        return [tensor.requires_grad for tensor in tensors(again)]

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """Return an empty state: the forward is repeated at the weights of its backward."""
        return ForwardState({}, {})

    def rebuild_output(
        self, module: nn.Module, leaves: Tree, state: ForwardState
    ) -> KeptOutput:
        """Return the output, for which the input will be forwarded again.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            state: Empty.
        """
        return self._recomputation(module, leaves)

    def _recomputation(self, module: nn.Module, leaves: Tree) -> KeptOutput:
        def recompute() -> Tree:
            inputs = self._editable(leaves)
            if self._statistics == "both":
                return self._run(module, inputs)
            return forward_without_buffer_updates(module, inputs, self._run)

        return KeptOutput(recompute)

    def after_update(self) -> None:
        """Do nothing: inputs do not depend on this stage's weights."""
