"""Linearization of a late gradient: old activations, and old, current or recomputed weights.

Between a batch's forward and its backward the optimizer changes the weights that the graph
saved. PyTorch leaves the outcome to chance: an ordinary step makes the backward raise, a fused
one silently combines old activations with new weights. So each linearization is imposed here,
with hooks on the tensors that autograd saves.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.autograd.graph import saved_tensors_hooks

from hocket.errors import CheckpointError, LinearizeError
from hocket.methods.method import Linearize, Statistics
from hocket.stage.compatibility import check_graph
from hocket.stage.forward_state import ForwardState, repeat_forward
from hocket.stage.rng import forward_without_buffer_updates
from hocket.stage.weight_view import LiveMemory, WeightView
from hocket.tree import Tree, copy_tensors, tensors

OutputFunction: TypeAlias = Callable[[], Tree]
"""Returns the output of a forward with its graph; called when the gradient has come."""


class Linearizer(Protocol):
    """Forwards a batch so that it can be differentiated after later updates."""

    @property
    def forbids_inner_forward(self) -> bool:
        """True if a layer that is forwarded again in the backward would see other weights."""

    @property
    def recomputes(self) -> bool:
        """True if the output to differentiate is computed when the gradient has come."""

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, OutputFunction]:
        """Return the output to send on, and the function for the output to differentiate.

        The leaves stay as they are, even if the module edits its input in place.
        """

    def needs_gradient(self, module: nn.Module, leaves: Tree, output: Tree) -> list[bool]:
        """Return for each tensor of an output whether it has a graph in the backward.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            output: Output of ``forward``.
        """

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """Return the state to repeat the next forward from; None if it is not kept."""

    def rebuild_output(
        self, module: nn.Module, leaves: Tree, state: ForwardState
    ) -> OutputFunction:
        """Repeat a forward of another process, and return the function for its output.

        The module may be left with the weights of that forward; the caller restores its own.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            state: Weights and buffers of the forward.
        """

    def after_update(self) -> None:
        """Take note that the weights have just changed."""


Editable: TypeAlias = Callable[[Tree], Tree]
"""Returns an input that the module may edit in place, while the original stays as it is."""


def build_linearizer(
    linearize: Linearize,
    delay: int,
    statistics: Statistics,
    keep_states: bool = False,
    editable: Editable = copy_tensors,
) -> Linearizer:
    """Build the linearizer of a stage; without delay it is always `PlainGraph`.

    Args:
        linearize: Weights that a late gradient is applied at.
        delay: Ticks between a forward and its backward.
        statistics: Passes that update BatchNorm's running statistics under ``recompute``.
        keep_states: Keep the state of each forward, so that checkpoints can be written.
        editable: Returns an input that the layers may edit.
    """
    if delay == 0:
        return PlainGraph(editable)
    if linearize == "recompute":
        return Recompute(statistics, editable)
    return SavedTensorHooks(
        stash=linearize == "stash", keep_states=keep_states, editable=editable
    )


class PlainGraph:
    """Plain graph of autograd, for stages without updates between forward and backward."""

    forbids_inner_forward = False
    recomputes = False

    def __init__(self, editable: Editable = copy_tensors) -> None:
        self._editable = editable

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, OutputFunction]:
        """Forward with a graph."""
        output = module(self._editable(leaves))
        return output, lambda: output

    def needs_gradient(self, module: nn.Module, leaves: Tree, output: Tree) -> list[bool]:
        """Return whether each tensor of the output has a graph.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            output: Output of the forward.
        """
        return [tensor.requires_grad for tensor in tensors(output)]

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """Return None: no batch is in flight between two ticks."""

    def rebuild_output(
        self, module: nn.Module, leaves: Tree, state: ForwardState
    ) -> OutputFunction:
        """Refuse, as no batch can have been in flight here.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            state: Weights and buffers of the forward.

        Raises:
            CheckpointError: Always.
        """
        raise CheckpointError(
            "a batch is in flight at a stage whose gradients come without delay; the "
            "checkpoint is of another method"
        )

    def after_update(self) -> None:
        """Do nothing: nothing is kept over an update."""


class Recompute:
    """Forwards the kept input again, at the current weights (FR, arXiv 1807.04511)."""

    forbids_inner_forward = False
    recomputes = True

    def __init__(self, statistics: Statistics, editable: Editable = copy_tensors) -> None:
        self._statistics = statistics
        self._editable = editable

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, OutputFunction]:
        """Forward without a graph; the graph is built when the gradient has come."""
        with torch.no_grad():
            output = module(self._editable(leaves))
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
    ) -> OutputFunction:
        """Return the function that forwards the input again.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            state: Empty.
        """
        return self._recomputation(module, leaves)

    def _recomputation(self, module: nn.Module, leaves: Tree) -> OutputFunction:
        def recompute() -> Tree:
            if self._statistics == "both":
                return module(self._editable(leaves))
            return forward_without_buffer_updates(module, self._editable(leaves))

        return recompute

    def after_update(self) -> None:
        """Do nothing: inputs do not depend on this stage's weights."""


class SavedTensorHooks:
    """Graph of the forward, with the weights of the forward (stash) or current ones (live).

    Each tensor that autograd saves passes a hook. A tensor that shares memory with a weight is
    copied, once for each version of the weight (``stash``: the gradient of the papers'
    theorems), or taken from the weight in the backward (``live``: the effect of an in-place
    step before PyTorch checked versions). Any other tensor must not change: its version is
    checked here, as hooks switch autograd's own check off.

    Args:
        stash: Differentiate at the weights of the forward.
        keep_states: Keep the state of each forward, so that it can be repeated.
        editable: Returns an input that the layers may edit.
    """

    forbids_inner_forward = True
    recomputes = False

    def __init__(
        self, *, stash: bool, keep_states: bool = False, editable: Editable = copy_tensors
    ) -> None:
        self._stash = stash
        self._keep_states = keep_states
        self._editable = editable
        self._copies: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._last_buffers: dict[str, Tensor] = {}  # of the last state kept
        self._graph_checked = False
        self._module: nn.Module | None = None  # that of the last forward
        self._parameters: list[nn.Parameter] = []

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, OutputFunction]:
        """Forward with a graph whose saved tensors went through the hooks.

        Raises:
            LinearizeError: A function of autograd keeps a weight outside the saved tensors.
        """
        with self._hooks(module):
            output = module(self._editable(leaves))
        if self._stash and not self._graph_checked:
            check_graph(output, dict(module.named_parameters()))
            self._graph_checked = True
        return output, lambda: output

    def needs_gradient(self, module: nn.Module, leaves: Tree, output: Tree) -> list[bool]:
        """Return whether each tensor of the output has a graph.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            output: Output of the forward.
        """
        return [tensor.requires_grad for tensor in tensors(output)]

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """Return the weights, in copies that ``stash`` shares, and the buffers."""
        if not self._keep_states:
            return None
        trained = ((name, p) for name, p in module.named_parameters() if p.requires_grad)
        weights = {name: self._stashed(p.detach(), p) for name, p in trained}
        # Not by version: BatchNorm's kernels change their statistics without counting it.
        self._last_buffers = {
            name: last
            if (last := self._last_buffers.get(name)) is not None and torch.equal(last, buffer)
            else buffer.clone()
            for name, buffer in module.named_buffers()
        }
        return ForwardState(weights, self._last_buffers)

    def rebuild_output(
        self, module: nn.Module, leaves: Tree, state: ForwardState
    ) -> OutputFunction:
        """Repeat the forward; ``stash`` keeps its weights, ``live`` the module's own.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            state: Weights and buffers of the forward.
        """
        with self._hooks(module):
            output = repeat_forward(module, self._editable(leaves), state)
        return lambda: output

    def _hooks(self, module: nn.Module) -> saved_tensors_hooks:
        """Return a context manager in which the tensors that autograd saves pass the hooks."""
        if module is not self._module:
            self._module, self._parameters = module, list(module.parameters())
        weights = {
            p.untyped_storage().data_ptr(): p for p in self._parameters if p.requires_grad
        }

        def pack(tensor: Tensor) -> object:
            weight = weights.get(tensor.untyped_storage().data_ptr())
            if weight is None:
                return tensor, tensor._version
            if self._stash:
                return self._stashed(tensor, weight)
            memory = LiveMemory(weight, weight.stride(), int(weight.storage_offset()))
            return WeightView.like(tensor, memory.storage)

        return saved_tensors_hooks(pack, _unpack)

    def after_update(self) -> None:
        """Make new copies for later forwards; graphs in flight hold on to the old ones."""
        self._copies = {}

    def copy_weights(self, weights: Sequence[Tensor]) -> list[torch.UntypedStorage]:
        """Return copies of the memory of the weights as they are, which graphs share.

        Args:
            weights: Weights of the stage.
        """
        for weight in weights:
            self._stashed(weight.detach(), weight)
        return [self._copies[_version_key(weight)] for weight in weights]

    @contextmanager
    def sharing(
        self, weights: Sequence[Tensor], copies: Sequence[torch.UntypedStorage]
    ) -> Iterator[None]:
        """Context manager in which graphs keep these copies in the place of the weights.

        Args:
            weights: Weights of the stage, which have the values of the copies.
            copies: A copy of the memory of each weight.
        """
        own = self._copies
        self._copies = dict(zip(map(_version_key, weights), copies, strict=True))
        try:
            yield
        finally:
            self._copies = own

    def _stashed(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Return a tensor as it is now, in a copy of the memory of its weight."""
        key = _version_key(weight)
        if key not in self._copies:
            self._copies[key] = weight.untyped_storage().clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = int(tensor.storage_offset())
        return empty.set_(self._copies[key], offset, tensor.size(), tensor.stride())


def _version_key(weight: Tensor) -> tuple[int, int]:
    """Return the place of a weight's memory, and its version.

    The version catches a change from outside, such as load_state_dict.
    """
    return weight.untyped_storage().data_ptr(), weight._version


def _unpack(packed: object) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    if isinstance(packed, WeightView):
        return packed.tensor()
    assert isinstance(packed, tuple)
    tensor, version = packed
    with DisableTorchFunction():  # `ForbidForward` need not see that a version is read
        present = tensor._version
    if present != version:
        raise LinearizeError(
            f"a tensor of shape {tuple(tensor.shape)} that the backward needs was changed in "
            f"place after the forward (version {present}, wanted {version}); "
            "make that change out of place, or use linearize='recompute'"
        )
    assert isinstance(tensor, Tensor)
    return tensor
