"""Linearization of a late gradient: old activations, and old, current or recomputed weights.

Between a batch's forward and its backward the optimizer changes the weights that the graph
saved. PyTorch leaves the outcome to chance: an ordinary step makes the backward raise, a fused
one silently combines old activations with new weights. So each linearization is imposed here,
with hooks on the tensors that autograd saves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from hocket.errors import CheckpointError, LinearizeError
from hocket.methods.method import Linearize, Statistics
from hocket.stage.forward_state import ForwardState, repeat_forward
from hocket.stage.rng import forward_without_buffer_updates
from hocket.tree import Tree, copy_tensors

OutputFunction: TypeAlias = Callable[[], Tree]
"""Returns the output of a forward with its graph; called when the gradient has come."""


class Linearizer(Protocol):
    """Forwards a batch so that it can be differentiated after later updates."""

    @property
    def forbids_inner_forward(self) -> bool:
        """True if a layer that is forwarded again in the backward would see other weights."""

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, OutputFunction]:
        """Return the output to send on, and the function for the output to differentiate.

        The leaves stay as they are, even if the module edits its input in place.
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


def build_linearizer(
    linearize: Linearize, delay: int, statistics: Statistics, keep_states: bool = False
) -> Linearizer:
    """Build the linearizer of a stage; without delay it is always `PlainGraph`.

    Args:
        linearize: Weights that a late gradient is applied at.
        delay: Ticks between a forward and its backward.
        statistics: Passes that update BatchNorm's running statistics under ``recompute``.
        keep_states: Keep the state of each forward, so that checkpoints can be written.
    """
    if delay == 0:
        return PlainGraph()
    if linearize == "recompute":
        return Recompute(statistics)
    return SavedTensorHooks(stash=linearize == "stash", keep_states=keep_states)


class PlainGraph:
    """Plain graph of autograd, for stages without updates between forward and backward."""

    forbids_inner_forward = False

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, OutputFunction]:
        """Forward with a graph."""
        output = module(copy_tensors(leaves))
        return output, lambda: output

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

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, OutputFunction]:
        """Forward without a graph; the graph is built when the gradient has come."""
        with torch.no_grad():
            output = module(copy_tensors(leaves))
        return output, self._recomputation(module, leaves)

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
                return module(copy_tensors(leaves))
            return forward_without_buffer_updates(module, copy_tensors(leaves))

        return recompute

    def after_update(self) -> None:
        """Do nothing: inputs do not depend on this stage's weights."""


@dataclass(frozen=True)
class _StashedView:
    """A view of a copy of weights, rebuilt when the backward asks for it."""

    storage: torch.UntypedStorage
    empty: Tensor
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        return self.empty.set_(self.storage, self.offset, self.size, self.stride)


class SavedTensorHooks:
    """Graph of the forward, with the weights of the forward (stash) or current ones (live).

    Each tensor that autograd saves passes a hook. A tensor that shares memory with a weight is
    copied, once for each version of the weight (``stash``: the gradient of the papers'
    theorems), or passed on as it is (``live``: the effect of an in-place step before PyTorch
    checked versions). Any other tensor must not change: its version is checked here, as hooks
    switch autograd's own check off.

    Args:
        stash: Differentiate at the weights of the forward.
        keep_states: Keep the state of each forward, so that it can be repeated.
    """

    forbids_inner_forward = True

    def __init__(self, *, stash: bool, keep_states: bool = False) -> None:
        self._stash = stash
        self._keep_states = keep_states
        self._copies: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._last_buffers: dict[str, Tensor] = {}  # of the last state kept

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, OutputFunction]:
        """Forward with a graph whose saved tensors went through the hooks."""
        with self._hooks(module):
            output = module(copy_tensors(leaves))
        return output, lambda: output

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """Return the weights, in copies that ``stash`` shares, and the buffers."""
        if not self._keep_states:
            return None
        trained = ((name, p) for name, p in module.named_parameters() if p.requires_grad)
        weights = {name: self._stashed(p.detach(), p).tensor() for name, p in trained}
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
            output = repeat_forward(module, copy_tensors(leaves), state)
        return lambda: output

    @contextmanager
    def _hooks(self, module: nn.Module) -> Iterator[None]:
        """Context manager in which the tensors that autograd saves pass the hooks."""
        weights = {
            p.untyped_storage().data_ptr(): p for p in module.parameters() if p.requires_grad
        }

        def pack(tensor: Tensor) -> object:
            weight = weights.get(tensor.untyped_storage().data_ptr())
            if weight is None:
                return tensor, tensor._version
            return self._stashed(tensor, weight) if self._stash else (tensor, None)

        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
            yield

    def after_update(self) -> None:
        """Make new copies for later forwards; graphs in flight hold on to the old ones."""
        self._copies.clear()

    def _stashed(self, tensor: Tensor, weight: Tensor) -> _StashedView:
        storage = tensor.untyped_storage()
        # The version catches a change from outside, such as load_state_dict.
        key = (storage.data_ptr(), weight._version)
        if key not in self._copies:
            self._copies[key] = storage.clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        view = tensor.size(), tensor.stride(), int(tensor.storage_offset())
        return _StashedView(self._copies[key], empty, *view)


def _unpack(packed: object) -> Tensor:
    if isinstance(packed, _StashedView):
        return packed.tensor()
    assert isinstance(packed, tuple)
    tensor, version = packed
    assert isinstance(tensor, Tensor)
    if version is not None and tensor._version != version:
        raise LinearizeError(
            f"a tensor of shape {tuple(tensor.shape)} that the backward needs was changed in "
            f"place after the forward (version {tensor._version}, wanted {version}); "
            "make that change out of place, or use linearize='recompute'"
        )
    return tensor
