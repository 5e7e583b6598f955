"""At which weights a late gradient is applied: the graph of the forward meets newer weights.

Between a batch's forward and its backward the optimizer changes the weights that the graph
saved. PyTorch does not decide for us what happens then: an ordinary step makes the backward
raise, a fused one gives old activations with new weights in silence. So every way is imposed
here, with hooks on what autograd saves.
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
from hocket.stage.rng import forward_without_statistics
from hocket.tree import Tree, copy_tensors

Graph: TypeAlias = Callable[[], Tree]
"""Gives the output of a forward with a graph, when its gradient has come."""


class Linearizer(Protocol):
    """How a stage forwards a batch so that it can be differentiated later."""

    @property
    def guarded(self) -> bool:
        """Whether a layer that runs again in the backward would see the wrong weights."""

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, Graph]:
        """The output to send on, and what gives the output to differentiate.

        The leaves stay as they are, whatever the module edits in place.
        """

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """What the next forward needs to be done again; None if that is not kept."""

    def repeat(self, module: nn.Module, leaves: Tree, past: ForwardState) -> Graph:
        """The graph of a forward that another process has done.

        The module may be left with the weights of then; whoever calls puts those of now.
        """

    def after_update(self) -> None:
        """The weights have just changed."""


def build_linearizer(
    linearize: Linearize, delay: int, statistics: Statistics, keep: bool = False
) -> Linearizer:
    """The linearizer of a stage; without delay all are the same, and none is needed."""
    if delay == 0:
        return Immediate()
    if linearize == "recompute":
        return Recompute(statistics)
    return SavedTensorHooks(stash=linearize == "stash", keep=keep)


class Immediate:
    """The plain graph: no update comes in between."""

    guarded = False

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, Graph]:
        """Forward with a graph."""
        output = module(copy_tensors(leaves))
        return output, lambda: output

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """Nothing: between two ticks no batch is in flight."""

    def repeat(self, module: nn.Module, leaves: Tree, past: ForwardState) -> Graph:
        """There is none: CheckpointError."""
        raise CheckpointError(
            "a batch is in flight at a stage whose gradients come without delay; the "
            "checkpoint is of another method"
        )

    def after_update(self) -> None:
        """Nothing is kept over an update."""


class Recompute:
    """The kept input, forwarded again at the weights of now (FR, arXiv 1807.04511)."""

    guarded = False

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, Graph]:
        """Forward without a graph; the graph is built when the gradient has come."""
        with torch.no_grad():
            output = module(copy_tensors(leaves))
        return output, self._graph(module, leaves)

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """Nothing is needed: the forward that counts is done at the weights of its backward."""
        return ForwardState({}, {})

    def repeat(self, module: nn.Module, leaves: Tree, past: ForwardState) -> Graph:
        """What builds the graph when the gradient has come."""
        return self._graph(module, leaves)

    def _graph(self, module: nn.Module, leaves: Tree) -> Graph:
        def graph() -> Tree:
            if self._statistics == "both":
                return module(copy_tensors(leaves))
            return forward_without_statistics(module, copy_tensors(leaves))

        return graph

    def after_update(self) -> None:
        """Inputs do not depend on this stage's weights."""


@dataclass(frozen=True)
class _View:
    """A view of stashed weights, to be rebuilt when the backward asks for it."""

    storage: torch.UntypedStorage
    like: Tensor
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        return self.like.set_(self.storage, self.offset, self.size, self.stride)


class SavedTensorHooks:
    """The graph of the forward, with the weights of the forward (stash) or of now (live).

    Whatever autograd saves passes a hook. A tensor that shares memory with a weight is copied,
    once for each version of the weight (``stash``: the gradient of the papers' theorems), or
    passed on as it is (``live``: what an in-place step did before PyTorch checked versions).
    Any other tensor must not change: its version is checked here, as hooks switch autograd's
    own check off.

    Args:
        stash: Whether the weights are those of the forward.
        keep: Whether to keep of every forward what it needs to be done again.
    """

    guarded = True

    def __init__(self, *, stash: bool, keep: bool = False) -> None:
        self._stash = stash
        self._keep = keep
        self._copies: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._buffers: dict[str, Tensor] = {}  # the last ones kept

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, Graph]:
        """Forward with a graph whose saved tensors went through the hooks."""
        with self._hooked(module):
            output = module(copy_tensors(leaves))
        return output, lambda: output

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """The weights, shared with what ``stash`` copies, and the buffers."""
        if not self._keep:
            return None
        trained = ((name, p) for name, p in module.named_parameters() if p.requires_grad)
        weights = {name: self._copied(p.detach(), p).tensor() for name, p in trained}
        # Not by version: BatchNorm's kernels change their statistics without counting it.
        self._buffers = {
            name: last
            if (last := self._buffers.get(name)) is not None and torch.equal(last, buffer)
            else buffer.clone()
            for name, buffer in module.named_buffers()
        }
        return ForwardState(weights, self._buffers)

    def repeat(self, module: nn.Module, leaves: Tree, past: ForwardState) -> Graph:
        """Forward as then: ``stash`` keeps those weights, ``live`` meets what comes later."""
        with self._hooked(module):
            output = repeat_forward(module, past, copy_tensors(leaves))
        return lambda: output

    @contextmanager
    def _hooked(self, module: nn.Module) -> Iterator[None]:
        """Inside, what autograd saves passes the hooks."""
        weights = {
            p.untyped_storage().data_ptr(): p for p in module.parameters() if p.requires_grad
        }

        def pack(tensor: Tensor) -> object:
            weight = weights.get(tensor.untyped_storage().data_ptr())
            if weight is None:
                return tensor, tensor._version
            return self._copied(tensor, weight) if self._stash else (tensor, None)

        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
            yield

    def after_update(self) -> None:
        """Later forwards need copies of their own; graphs in flight hold on to the old ones."""
        self._copies.clear()

    def _copied(self, tensor: Tensor, weight: Tensor) -> _View:
        storage = tensor.untyped_storage()
        # The version catches a change from outside, such as load_state_dict.
        key = (storage.data_ptr(), weight._version)
        if key not in self._copies:
            self._copies[key] = storage.clone()
        like = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        view = tensor.size(), tensor.stride(), int(tensor.storage_offset())
        return _View(self._copies[key], like, *view)


def _unpack(kept: object) -> Tensor:
    if isinstance(kept, _View):
        return kept.tensor()
    assert isinstance(kept, tuple)
    tensor, version = kept
    assert isinstance(tensor, Tensor)
    if version is not None and tensor._version != version:
        raise LinearizeError(
            f"a tensor of shape {tuple(tensor.shape)} that the backward needs was changed in "
            f"place after the forward (version {tensor._version}, wanted {version}); "
            "make that change out of place, or use linearize='recompute'"
        )
    return tensor
