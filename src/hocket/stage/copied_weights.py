"""Linearization of known layers: ``stash`` by copies in the place of the weights.

Hooks see every tensor that autograd saves, each by a call of Python in the forward and one in
the backward. Where it is known which weights a backward needs, the layers are given copies of
these for the time of the forward, and autograd saves what it likes.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from hocket.stage.known_layers import KnownLayers
from hocket.stage.linearize import KeptOutput, SavedTensorHooks
from hocket.tree import Tree


class CopiedWeights(SavedTensorHooks):
    """Graph of the forward, with copies of the weights of the forward.

    Layers of which less is known go through the hooks: so do those that get hooks of their own
    later, and weights with hooks, which expect to see the gradient of the weight itself.

    Args:
        layers: What is known of the layers.
        keep_states: Keep the state of each forward, so that it can be repeated.
    """

    def __init__(self, layers: KnownLayers, *, keep_states: bool = False) -> None:
        super().__init__(stash=True, keep_states=keep_states, editable=layers.editable)
        self._layers = layers

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph that ends in copies of the weights."""
        places = [
            (parameters, name, weight)
            for parameters, name in self._layers.saved_weights
            if (weight := parameters[name]) is not None and weight.requires_grad
        ]
        weights = [weight for _, _, weight in places]
        if not (weights and self._layers.plain) or any(map(_has_hooks, weights)):
            return super().forward(module, leaves)
        copies = [self.copies.whole(weight).requires_grad_() for weight in weights]
        try:
            for (parameters, name, _), copy in zip(places, copies, strict=True):
                parameters[name] = copy  # type: ignore[assignment]
            output = module(self._editable(leaves))
        finally:
            for parameters, name, weight in places:
                parameters[name] = weight
        return output, _OutputOfCopies(output, weights, copies)


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
            weight.grad = copy.grad


def _has_hooks(weight: nn.Parameter) -> bool:
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)
