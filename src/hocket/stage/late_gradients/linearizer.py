"""Linearizers: forwards of a batch that can be differentiated after later updates.

Here are their base, and those that need no weights but the present ones: the plain graph, where
no update comes between, and the forward that is repeated.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hocket.methods.method import Statistics
from hocket.stage.layers.known_layers import KnownLayers
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.stage.layers.reversible import layers_of, require_inverse
from hocket.stage.weight_copies.copies import VersionCopies
from hocket.stage.weight_copies.forward_state import (
    ForwardState,
    forward_without_buffer_updates,
    frozen_weights,
    only_frozen,
    replaced_buffers,
    set_tensors,
)
from hocket.tree import Tree, copy_tensors, tensors


class KeptOutput:
    """Output of a forward with its graph, until its gradient has come.

    Args:
        get: Returns the output, which may have to be computed.
    """

    __slots__ = ("get",)

    def __init__(self, get: Callable[[], Tree]) -> None:
        self.get = get

    def after_backward(self) -> None:
        """Do nothing: the backward has left the gradients with the weights."""


class OutputOfCopies(KeptOutput):
    """Output whose graph leaves the gradients of weights with copies of them.

    Args:
        get: Returns the output.
        weights: The weights.
        copies: A copy of each.
    """

    __slots__ = ("_copies", "_weights")

    def __init__(
        self, get: Callable[[], Tree], weights: Sequence[nn.Parameter], copies: Sequence[Tensor]
    ) -> None:
        super().__init__(get)
        self._weights = weights
        self._copies = copies

    def after_backward(self) -> None:
        """Give the weights the gradients of their copies."""
        for weight, copy in zip(self._weights, self._copies, strict=True):
            if copy.grad is None or not weight.requires_grad:  # it may be frozen by now
                continue
            given, copy.grad = copy.grad, None  # a later backward would add to it
            if weight.grad is None and is_ordinary(weight):
                weight.grad = given
            else:  # it has another gradient, or hooks that came after the forward
                torch.autograd.backward([weight], [given])


def is_ordinary(weight: object) -> bool:
    """Return True for a parameter without hooks, and of no subclass."""
    return type(weight) is nn.Parameter and not (
        weight._backward_hooks or weight._post_accumulate_grad_hooks
    )


@dataclass(frozen=True, kw_only=True)
class StageLayers:
    """Everything that a linearizer knows of the layers of its stage.

    Attributes:
        known: Known facts about the layers.
        compiled: Calls the layers, if they are compiled; see `CompiledLayers`.
        names: Names of the weights in the network.
        trained: Weights that have an optimizer, and so may change while they are frozen.
        keep_states: Keep the state of each forward, so that it can be repeated.
    """

    known: KnownLayers
    compiled: Callable[..., Tree] | None = None
    names: NetworkNames = field(default_factory=NetworkNames)
    trained: Sequence[nn.Parameter] = ()
    keep_states: bool = False


class Linearizer(ABC):
    """Forwards a batch so that it can be differentiated after later updates.

    Args:
        layers: What is known of the layers.
        copies: Copies of the weights that graphs in flight share; None if they need none.

    Attributes:
        copies: These copies.
        forbids_inner_forward: True if a layer that is forwarded again in the backward would see
            other weights.
        recomputes: True if the output to differentiate is computed when the gradient has come.
        inverts: True if the input is then computed as well; see `Invert`.
    """

    forbids_inner_forward = False
    recomputes = False
    inverts = False

    def __init__(self, layers: StageLayers, copies: VersionCopies | None = None) -> None:
        self.copies = copies
        self._names = layers.names
        self._keep_states = layers.keep_states
        self._module = layers.known.module
        self._run = layers.compiled or self._module
        # Returns an input that the layers may edit, while the original stays as it is.
        self._editable = layers.known.editable
        self._trained = frozenset(layers.trained)
        self._named: list[tuple[str, nn.Parameter]] | None = None  # from the first forward on

    def _weights(self) -> dict[str, nn.Parameter]:
        """Return the weights of the layers that updates change, by name.

        A frozen one is among them: it may be unfrozen before the backward, and an older
        forward may see other numbers.
        """
        if self._named is None:
            self._named = list(self._module.named_parameters())
        return {n: p for n, p in self._named if p.requires_grad or p in self._trained}

    @abstractmethod
    def forward(self, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Return the output to send on, and the output to differentiate.

        The leaves stay as they are, even if the layers edit their input in place.
        """

    def needs_gradient(self, leaves: Tree, output: Tree) -> list[bool]:
        """Return for each tensor of an output of ``forward`` whether it will have a graph."""
        return [tensor.requires_grad for tensor in tensors(output)]

    def forward_state(self) -> ForwardState | None:
        """Return the state to repeat the next forward from; None if it is not kept."""
        if not self._keep_states:
            return None
        weights: dict[str, Tensor] = {}  # need not be kept if no update comes first
        if self.copies is not None:  # which graphs share
            weights = {n: self.copies.whole(p) for n, p in self._weights().items()}
        return self._present_state(weights)

    def _present_state(self, weights: dict[str, Tensor]) -> ForwardState:
        """Return the state of the next forward, with copies of weights that graphs share."""
        # All buffers, also those that have not changed: a comparison waits for a GPU, and
        # BatchNorm's kernels change their statistics without counting a version.
        buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        return ForwardState(weights, buffers, frozen_weights(self._module))

    def rebuild_output(self, leaves: Tree, state: ForwardState) -> KeptOutput:
        """Repeat a forward of another process, and return the output to differentiate.

        The layers may be left with the weights of that forward; the caller restores its own.

        Args:
            leaves: Input of the forward.
            state: State of the forward.
        """
        set_tensors(self._module, state.weights)
        buffers = replaced_buffers(self._module, copy_tensors(state.buffers))
        with buffers, only_frozen(self._module, state.frozen):
            return self.forward(leaves)[1]

    def after_update(self) -> None:
        """Make new copies for later forwards; graphs in flight hold on to the old ones."""
        if self.copies is not None:
            self.copies.forget()


class PlainGraph(Linearizer):
    """Plain graph of autograd, for stages without updates between forward and backward."""

    def forward(self, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph."""
        output = self._run(self._editable(leaves))
        return output, KeptOutput(lambda: output)


class Recompute(Linearizer):
    """Forwards the kept input again, at the current weights (FR, arXiv 1807.04511).

    Args:
        layers: What is known of the layers.
        statistics: Passes that update BatchNorm's running statistics.
        keep_buffers: Forward again from the buffers of the first forward.
    """

    recomputes = True

    def __init__(
        self, layers: StageLayers, statistics: Statistics, *, keep_buffers: bool = False
    ) -> None:
        super().__init__(layers)
        self._statistics = statistics
        self._keep_buffers = keep_buffers

    def forward(self, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward without a graph; the graph is built when the gradient has come."""
        again = self.rebuild_output(leaves, self.forward_state())
        with torch.no_grad():
            output = self._run(self._editable(leaves))
        return output, again

    def needs_gradient(self, leaves: Tree, output: Tree) -> list[bool]:
        """Forward once more, with a graph, to see which tensors have one; see the base."""
        again = forward_without_buffer_updates(self._module, self._editable(leaves))
        return [tensor.requires_grad for tensor in tensors(again)]

    def forward_state(self) -> ForwardState:
        """Return the buffers if they are kept; the backward uses its present weights."""
        return self._present_state({}) if self._keep_buffers else ForwardState({}, {})

    def rebuild_output(self, leaves: Tree, state: ForwardState) -> KeptOutput:
        """Return the output, for which the input will be forwarded again; see the base.

        Without buffers in the state, the forward begins with the present ones.
        """

        def recompute() -> Tree:
            inputs = self._editable(leaves)
            if self._statistics == "both":
                return self._run(inputs)
            return forward_without_buffer_updates(
                self._module, inputs, self._run, state.buffers
            )

        return KeptOutput(recompute)


class Invert(Recompute):
    """Keeps nothing of a batch, and forwards again the input of the output that comes back.

    The input is computed by the reverse of the layers (PETRA, arXiv 2406.02052, algorithm 1).
    As under ``recompute`` the forward alone updates BatchNorm's running statistics, and not the
    backward alone, as in the paper: a batch counts once either way.

    Args:
        layers: What is known of the layers, each of which has a reverse.
    """

    inverts = True

    def __init__(self, layers: StageLayers) -> None:
        super().__init__(layers, "forward")
        names = {layer: name for name, layer in layers.names.of_layers(self._module)}
        self._reversed: list[tuple[str, Any]] = [
            (names[layer], layer) for layer in reversed(layers_of(self._module))
        ]
        self._checked = False

    @torch.no_grad()
    def invert(self, output: Tree) -> Tree:
        """Return the input for an output (B, ...) at the present weights; buffers stay.

        Raises:
            LinearizeError: The reverse of a layer is not its inverse, as its first use shows.
        """
        copies = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        with replaced_buffers(self._module, copies):
            for name, layer in self._reversed:
                inputs = layer.reverse(self._editable(output))
                if not self._checked:
                    require_inverse(layer, name, self._editable(inputs), output)
                output = inputs
        self._checked = True
        return output
