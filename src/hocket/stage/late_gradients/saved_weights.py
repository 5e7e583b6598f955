"""Linearization of a late gradient at the weights of the forward, or at the present ones.

Between a batch's forward and its backward the optimizer changes the weights that the graph
saved. PyTorch leaves the outcome to chance: an ordinary step makes the backward raise, a fused
one silently combines old activations with new weights. So each linearization is imposed here,
with hooks on the tensors that autograd saves.

Hooks see every tensor that autograd saves, each by a call of Python in the forward and one in
the backward. Under ``stash``, known layers go through them in the first forward only, which
shows which weights are saved. In later ones the layers are given copies of these weights, and
autograd saves what it likes.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.autograd.graph import saved_tensors_hooks

from hocket.errors import LinearizeError
from hocket.stage.late_gradients.linearizer import (
    KeptOutput,
    Linearizer,
    OutputOfCopies,
    StageLayers,
    is_ordinary,
)
from hocket.stage.layers.compatibility import check_graph
from hocket.stage.update.untrained import describe_names
from hocket.stage.weight_copies.copies import VersionCopies, live_view
from hocket.tree import Tree, tensors


class SavedTensorHooks(Linearizer):
    """Graph of the forward, with the weights of the forward (stash) or current ones (live).

    Each tensor that autograd saves passes a hook. A tensor that shares memory with a weight is
    copied, once for each version of the weight (``stash``: the gradient of the papers'
    theorems), or taken from the weight in the backward (``live``: the effect of an in-place
    step before PyTorch checked versions). Any other tensor must not change: its version is
    checked here, as hooks switch autograd's own check off.

    Args:
        layers: What is known of the layers.
        stash: Differentiate at the weights of the forward.
    """

    forbids_inner_forward = True
    copies: VersionCopies

    def __init__(self, layers: StageLayers, *, stash: bool) -> None:
        super().__init__(layers, VersionCopies())
        self._stash = stash
        self._graph_checked = False
        self._packed: set[int] = set()  # weights that autograd has saved

    def forward(self, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph whose saved tensors went through the hooks.

        Raises:
            LinearizeError: A function of autograd keeps a weight outside the saved tensors.
            RuntimeError: The layers raised it.
        """
        try:
            with self._hooks():
                output = self._module(self._editable(leaves))
        except RuntimeError as error:
            if "saved tensor hooks" in str(error):  # said by torch.func
                error.add_note("(linearize='recompute' uses no such hooks)")
            raise
        if self._stash and not self._graph_checked:
            check_graph(output, dict(self._names.of_parameters(self._module)))
            self._graph_checked = True
        return output, KeptOutput(lambda: output)

    def _hooks(self) -> saved_tensors_hooks:
        """Return a context manager in which the tensors that autograd saves pass the hooks."""
        trained = self._weights().values()
        weights = {p.untyped_storage().data_ptr(): p for p in trained}
        owned = {id(p): p for p in trained}
        copies, stash = self.copies, self._stash

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
            return owned.get(id(tensor if tensor._base is None else tensor._base))

        def pack(tensor: Tensor) -> object:
            with DisableTorchFunction():  # a forward that is followed need not see this
                weight = find(tensor)
                if weight is None:
                    # Detached, or the output of a function would keep the function that keeps
                    # it, and a graph without a backward, as of a skipped batch, would stay.
                    return tensor.detach(), tensor._version
                self._packed.add(id(weight))
                return copies.view(tensor, weight) if stash else live_view(tensor, weight)

        return saved_tensors_hooks(pack, _unpack)


def _unpack(packed: object) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    if callable(packed):
        view: Tensor = packed()
        return view
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


class CopiedWeights(SavedTensorHooks):
    """Graph of the forward, with copies of the weights of the forward.

    Layers of which less is known go through the hooks on saved tensors. So do layers that get
    hooks later, layers whose weights were replaced or put into one memory, and weights with
    hooks, which expect to see the gradient of the weight itself.
    """

    def __init__(self, layers: StageLayers) -> None:
        super().__init__(layers, stash=True)
        self._layers = layers.known
        self._saved: dict[Hashable, list[int]] = {}  # numbers of places by kind of forward

    def forward(self, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph that ends in copies of the weights.

        Raises:
            LinearizeError: A forward changes weights itself, and its first one did not.
        """
        # Let layers of which too little is known go through the hooks.
        held: list[Any] = [
            parameters.get(name) for parameters, name in self._layers.weight_places
        ]
        trusted = self._layers.plain and self._layers.checked
        if not trusted or not all(map(is_ordinary, held)):
            return super().forward(leaves)
        if len({weight.untyped_storage().data_ptr() for weight in held}) < len(held):
            return super().forward(leaves)

        # Learn from the first forward of a kind which weights autograd saves.
        inputs = tensors(leaves)
        kind = (
            tuple([(leaf.requires_grad, leaf.dim(), leaf.dtype) for leaf in inputs]),
            tuple([weight.requires_grad for weight in held]),
        )
        if kind not in self._saved:
            self._packed = set()
            output, kept = super().forward(leaves)
            # A forward that the user wrote may call other layers with the next batch.
            every = bool(self._layers.declared)
            self._saved[kind] = [
                n for n, each in enumerate(held) if every or id(each) in self._packed
            ]
            return output, kept

        # Forward with copies of these weights.
        saved = self._saved[kind]
        weights = [held[n] for n in saved]
        places = [self._layers.weight_places[n] for n in saved]
        copies = [self.copies.whole(w).requires_grad_(w.requires_grad) for w in weights]
        before = [(copy._version, copy.data_ptr()) for copy in copies]
        try:
            for (parameters, name), copy in zip(places, copies, strict=True):
                parameters[name] = copy
            output = self._module(self._editable(leaves))
        finally:
            for (parameters, name), weight in zip(places, weights, strict=True):
                parameters[name] = weight

        # Refuse a change of a copy, which would be lost.
        after = [(copy._version, copy.data_ptr()) for copy in copies]
        if before != after:
            triples = zip(weights, before, after, strict=True)
            edited = {weight for weight, was, now in triples if was != now}
            named = self._names.of_parameters(self._module)
            names = [name for name, weight in named if weight in edited]
            raise LinearizeError(
                f"a forward changes {describe_names(names)} itself, and its first one did not, "
                "so that the change would be lost; take plain_forward from the class of that "
                "forward, or set max_norm before the trainer is built"
            )
        return output, OutputOfCopies(lambda: output, weights, copies)
