"""Linearization of known layers: ``stash`` by copies instead of the weights.

Hooks see every tensor that autograd saves, each by a call of Python in the forward and one in
the backward. Here they see the first forward only, and learn which weights are saved. In later
ones the layers are given copies of these weights, and autograd saves what it likes.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from hocket.errors import LinearizeError
from hocket.stage.late_gradients.stash_or_live import KeptOutput, SavedTensorHooks
from hocket.stage.layers.known_layers import KnownLayers
from hocket.stage.layers.network_names import NetworkNames
from hocket.stage.update.untrained import describe_names
from hocket.tree import Tree, tensors


class CopiedWeights(SavedTensorHooks):
    """Graph of the forward, with copies of the weights of the forward.

    Layers of which less is known go through the hooks on saved tensors. So do layers that get
    hooks later, layers whose weights were replaced or put into one memory, and weights with
    hooks, which expect to see the gradient of the weight itself.

    Args:
        layers: What is known of the layers.
        names: Names of the weights in the network.
        keep_states: Keep the state of each forward, so that it can be repeated.
        trained: Weights that have an optimizer.
    """

    def __init__(
        self,
        layers: KnownLayers,
        names: NetworkNames,
        *,
        keep_states: bool,
        trained: Iterable[nn.Parameter] = (),
    ) -> None:
        super().__init__(
            names,
            stash=True,
            keep_states=keep_states,
            editable=layers.editable,
            trained=trained,
        )
        self._layers = layers
        self._saved: dict[Hashable, list[int]] = {}  # numbers of places by kind of forward
        self._packed: set[int] = set()

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph that ends in copies of the weights."""
        # Let layers of which too little is known go through the hooks.
        held: list[Any] = [
            parameters.get(name) for parameters, name in self._layers.weight_places
        ]
        trusted = self._layers.plain and self._layers.checked
        if not trusted or not _can_be_copied(held):
            return super().forward(module, leaves)

        # Learn from the first forward of a kind which weights autograd saves.
        kind = _kind(leaves, held)
        if kind not in self._saved:
            self._packed = set()
            output, kept = super().forward(module, leaves)
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
            output = module(self._editable(leaves))
        finally:
            for (parameters, name), weight in zip(places, weights, strict=True):
                parameters[name] = weight

        # A change of a copy would be lost.
        if before != [(copy._version, copy.data_ptr()) for copy in copies]:
            self._refuse_edits(weights, copies, before)
        return output, _OutputOfCopies(output, weights, copies)

    def _refuse_edits(
        self,
        weights: Sequence[nn.Parameter],
        copies: Sequence[Tensor],
        before: Sequence[tuple[int, int]],
    ) -> NoReturn:
        """Refuse a forward that has changed copies, of which the weights know nothing.

        Args:
            weights: The weights.
            copies: A copy of each.
            before: Version and place of each copy before the forward.

        Raises:
            LinearizeError: Always.
        """
        triples = zip(weights, copies, before, strict=True)
        edited = {w for w, c, was in triples if (c._version, c.data_ptr()) != was}
        assert self._module is not None, "the first forward went through the hooks"
        named = self._names.of_parameters(self._module)
        raise LinearizeError(
            f"a forward changes {describe_names([n for n, w in named if w in edited])} itself, "
            "and its first one did not, so that the change would be lost; take plain_forward "
            "from the class of that forward, or set max_norm before the trainer is built"
        )

    def _pack_weight(self, tensor: Tensor, weight: nn.Parameter) -> object:
        self._packed.add(id(weight))
        return super()._pack_weight(tensor, weight)


class _OutputOfCopies(KeptOutput):
    """Output whose graph leaves the gradients of weights with copies of them.

    Args:
        output: The output, with tensors of shape (B, ...).
        weights: The weights.
        copies: A copy of each.
    """

    __slots__ = ("_copies", "_weights")

    def __init__(
        self, output: Tree, weights: Sequence[nn.Parameter], copies: Sequence[Tensor]
    ) -> None:
        super().__init__(lambda: output)
        self._weights = weights
        self._copies = copies

    def after_backward(self) -> None:
        """Give the weights the gradients of their copies."""
        for weight, copy in zip(self._weights, self._copies, strict=True):
            if copy.grad is None or not weight.requires_grad:  # it may be frozen by now
                continue
            if weight.grad is None and _is_ordinary(weight):
                weight.grad = copy.grad
            else:  # it has another gradient, or hooks that came after the forward
                torch.autograd.backward([weight], [copy.grad])


def _can_be_copied(weights: Sequence[Any]) -> bool:
    """Return True if all are ordinary parameters, and no two share their memory.

    Args:
        weights: Objects in the places of the weights.
    """
    if not all(map(_is_ordinary, weights)):
        return False
    return len({weight.untyped_storage().data_ptr() for weight in weights}) == len(weights)


def _is_ordinary(weight: object) -> bool:
    """Return True for a parameter without hooks, and of no subclass."""
    return type(weight) is nn.Parameter and not (
        weight._backward_hooks or weight._post_accumulate_grad_hooks
    )


def _kind(leaves: Tree, weights: Sequence[nn.Parameter]) -> Hashable:
    """Return everything that decides which weights autograd saves in a forward.

    Args:
        leaves: Input of the forward, with tensors of shape (B, ...).
        weights: Weights of the layers.
    """
    inputs = tensors(leaves)
    return (
        tuple([(leaf.requires_grad, leaf.dim(), leaf.dtype) for leaf in inputs]),
        tuple([weight.requires_grad for weight in weights]),
        any([torch.is_autocast_enabled(leaf.device.type) for leaf in inputs]),
    )
