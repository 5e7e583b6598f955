"""Linearization of a late gradient: old activations, and old, current or recomputed weights.

Between a batch's forward and its backward the optimizer changes the weights that the graph
saved. PyTorch leaves the outcome to chance: an ordinary step makes the backward raise, a fused
one silently combines old activations with new weights. So each linearization is imposed here,
with hooks on the tensors that autograd saves.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.autograd.graph import saved_tensors_hooks

from hocket.errors import CheckpointError, LinearizeError
from hocket.stage.layers.compatibility import check_graph
from hocket.stage.layers.network_names import NetworkNames
from hocket.stage.weight_copies.forward_state import (
    ForwardState,
    RunLayers,
    present_state,
    replaced_buffers,
    run_layers,
    set_tensors,
)
from hocket.stage.weight_copies.version_copies import VersionCopies
from hocket.stage.weight_copies.weight_view import LiveView, WeightView
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


class Linearizer(Protocol):
    """Forwards a batch so that it can be differentiated after later updates."""

    @property
    def copies(self) -> VersionCopies | None:
        """Copies of the weights that graphs in flight share; None if graphs keep none."""

    @property
    def forbids_inner_forward(self) -> bool:
        """True if a layer that is forwarded again in the backward would see other weights."""

    @property
    def recomputes(self) -> bool:
        """True if the output to differentiate is computed when the gradient has come."""

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Return the output to send on, and the output to differentiate.

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
    ) -> KeptOutput:
        """Repeat a forward of another process, and return the output to differentiate.

        The module may be left with the weights of that forward; the caller restores its own.

        Args:
            module: Layers of the stage.
            leaves: Input of the forward.
            state: Weights and buffers of the forward.
        """

    def after_update(self) -> None:
        """Prepare for forwards with weights that have just changed."""


Editable: TypeAlias = Callable[[Tree], Tree]
"""Returns an input that the module may edit in place, while the original stays as it is."""


class KeptGraph(ABC):
    """Base of linearizers that keep the graph of the forward until its gradient has come.

    Args:
        copies: Copies of the weights that graphs in flight share; None if they need none.
        editable: Returns an input that the layers may edit.
        keep_states: Keep the state of each forward, so that it can be repeated.
        trained: Weights that have an optimizer, and so may change while they are frozen.
    """

    forbids_inner_forward = False
    recomputes = False

    def __init__(
        self,
        copies: VersionCopies | None,
        editable: Editable,
        *,
        keep_states: bool,
        trained: Iterable[nn.Parameter] = (),
    ) -> None:
        self.copies = copies
        self._editable = editable
        self._keep_states = keep_states
        self._trained = frozenset(trained)
        self._module: nn.Module | None = None  # of the last forward
        self._named: list[tuple[str, nn.Parameter]] = []

    def _weights_of(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """Return the weights of a module that updates change, by name.

        A frozen one is among them: it may be unfrozen before the backward, and an older
        forward may see other numbers.
        """
        if module is not self._module:
            self._module, self._named = module, list(module.named_parameters())
        return {n: p for n, p in self._named if p.requires_grad or p in self._trained}

    def needs_gradient(self, module: nn.Module, leaves: Tree, output: Tree) -> list[bool]:
        """Return for each tensor of the output whether it has a graph; see the protocol."""
        return [tensor.requires_grad for tensor in tensors(output)]

    def forward_state(self, module: nn.Module) -> ForwardState | None:
        """Return the buffers and the weights, in shared copies; None if no states are kept."""
        if not self._keep_states:
            return None
        weights: dict[str, Tensor] = {}  # need not be kept if no update comes first
        if self.copies is not None:
            weights = {n: self.copies.whole(p) for n, p in self._weights_of(module).items()}
        return present_state(module, weights)

    @abstractmethod
    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph."""

    def rebuild_output(
        self, module: nn.Module, leaves: Tree, state: ForwardState
    ) -> KeptOutput:
        """Repeat a forward at the weights and buffers of its state; see the protocol.

        The module is left with these weights, and with its own buffers.
        """
        set_tensors(module, state.weights)
        with replaced_buffers(module, copy_tensors(state.buffers)):
            return self.forward(module, leaves)[1]

    def after_update(self) -> None:
        """Make new copies for later forwards; graphs in flight hold on to the old ones."""
        if self.copies is not None:
            self.copies.forget()


class PlainGraph(KeptGraph):
    """Plain graph of autograd, for stages without updates between forward and backward.

    Args:
        editable: Returns an input that the layers may edit.
        run: Calls the layers.
        keep_states: Keep the buffers of each forward, so that it can be repeated.
    """

    def __init__(
        self,
        editable: Editable = copy_tensors,
        run: RunLayers = run_layers,
        *,
        keep_states: bool = False,
    ) -> None:
        super().__init__(None, editable, keep_states=keep_states)
        self._run = run

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph."""
        output = self._run(module, self._editable(leaves))
        return output, KeptOutput(lambda: output)

    def rebuild_output(
        self, module: nn.Module, leaves: Tree, state: ForwardState
    ) -> KeptOutput:
        """Repeat the forward at the module's weights; see the protocol.

        Raises:
            CheckpointError: No batch can have been in flight here.
        """
        if not self._keep_states:
            raise CheckpointError(
                "a batch is in flight at a stage whose gradients come without delay; the "
                "checkpoint is of another method"
            )
        return super().rebuild_output(module, leaves, state)


class SavedTensorHooks(KeptGraph):
    """Graph of the forward, with the weights of the forward (stash) or current ones (live).

    Each tensor that autograd saves passes a hook. A tensor that shares memory with a weight is
    copied, once for each version of the weight (``stash``: the gradient of the papers'
    theorems), or taken from the weight in the backward (``live``: the effect of an in-place
    step before PyTorch checked versions). Any other tensor must not change: its version is
    checked here, as hooks switch autograd's own check off.

    Args:
        names: Names of the weights in the network.
        stash: Differentiate at the weights of the forward.
        keep_states: Keep the state of each forward, so that it can be repeated.
        editable: Returns an input that the layers may edit.
        trained: Weights that have an optimizer.
    """

    forbids_inner_forward = True
    copies: VersionCopies

    def __init__(
        self,
        names: NetworkNames,
        *,
        stash: bool,
        keep_states: bool = False,
        editable: Editable = copy_tensors,
        trained: Iterable[nn.Parameter] = (),
    ) -> None:
        super().__init__(VersionCopies(), editable, keep_states=keep_states, trained=trained)
        self._names = names
        self._stash = stash
        self._graph_checked = False

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph whose saved tensors went through the hooks.

        Raises:
            LinearizeError: A function of autograd keeps a weight outside the saved tensors.
            RuntimeError: The layers raised it.
        """
        try:
            with self._hooks(module):
                output = module(self._editable(leaves))
        except RuntimeError as error:
            if "saved tensor hooks" in str(error):  # said by torch.func
                error.add_note("(linearize='recompute' uses no such hooks)")
            raise
        if self._stash and not self._graph_checked:
            check_graph(output, dict(self._names.of_parameters(module)))
            self._graph_checked = True
        return output, KeptOutput(lambda: output)

    def _hooks(self, module: nn.Module) -> saved_tensors_hooks:
        """Return a context manager in which the tensors that autograd saves pass the hooks."""
        trained = self._weights_of(module).values()
        weights = {p.untyped_storage().data_ptr(): p for p in trained}
        owned = {id(p): p for p in trained}

        def find(tensor: Tensor) -> nn.Parameter | None:
            """Return the weight whose memory a saved tensor shares; None if there is none."""
            if tensor.layout != torch.strided:  # a sparse one has no such memory
                return None
            place = tensor.untyped_storage().data_ptr()
            weight = weights.get(place)
            # In its forward a layer may give its weight new memory, as by `weight.data = ...`;
            # an activation may then be in the old one.
            if weight is not None and weight.untyped_storage().data_ptr() == place:
                return weight
            with DisableTorchFunction():
                return owned.get(id(tensor if tensor._base is None else tensor._base))

        def pack(tensor: Tensor) -> object:
            weight = find(tensor)
            if weight is None:
                # Detached, or the output of a function would keep the function that keeps it,
                # and a graph without a backward, as of a skipped batch, would never be freed.
                with DisableTorchFunction():  # a forward that is followed need not see that
                    return tensor.detach(), tensor._version
            return self._pack_weight(tensor, weight)

        return saved_tensors_hooks(pack, _unpack)

    def _pack_weight(self, tensor: Tensor, weight: nn.Parameter) -> object:
        """Return what is kept instead of a tensor that shares memory with a weight.

        Args:
            tensor: The tensor (...), as autograd saves it.
            weight: The weight.
        """
        if self._stash:
            return self.copies.view(tensor, weight)
        offset = int(weight.storage_offset())
        return LiveView(WeightView.like(tensor), weight, weight.stride(), offset)


def _unpack(packed: object) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    if isinstance(packed, LiveView):
        return packed.tensor()
    assert isinstance(packed, tuple)
    tensor, version = packed
    with DisableTorchFunction():  # `ForbidForward` need not see that a version is read
        present = tensor._version
    if present != version:
        raise LinearizeError(
            f"a tensor of shape {tuple(tensor.shape)} that the backward needs was changed in "
            f"place after the forward (version {present}, wanted {version}); "
            "make that change out of place, or use linearize='recompute'; before running "
            "statistics are written, as by load_state_dict, call the trainer's finish()"
        )
    assert isinstance(tensor, Tensor)
    return tensor
