"""Linearization of compiled layers: ``stash`` and ``live`` without hooks on saved tensors.

The layers are called with other tensors instead of their weights: copies of the version,
or views of the present memory, whose changes autograd does not count. The gradients of these
tensors are passed on to the weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from hocket.errors import LinearizeError, OptionError
from hocket.stage.late_gradients.compiled import CompiledLayers
from hocket.stage.late_gradients.stash_or_live import Editable, KeptGraph, KeptOutput
from hocket.stage.layers.compatibility import graph_nodes
from hocket.stage.layers.network_names import NetworkNames
from hocket.stage.weight_copies.version_copies import VersionCopies
from hocket.tree import Tree


class CompiledGraph(KeptGraph):
    """Graph of compiled layers, with the weights of the forward (stash) or present ones (live).

    Args:
        layers: The compiled layers, which must recompute nothing for ``live``.
        names: Names of the weights in the network.
        stash: Differentiate at the weights of the forward.
        keep_states: Keep the state of each forward, so that it can be repeated.
        editable: Returns an input that the layers may edit.
        trained: Weights that have an optimizer.
    """

    copies: VersionCopies

    def __init__(
        self,
        layers: CompiledLayers,
        names: NetworkNames,
        *,
        stash: bool,
        keep_states: bool,
        editable: Editable,
        trained: Iterable[nn.Parameter],
    ) -> None:
        super().__init__(VersionCopies(), editable, keep_states=keep_states, trained=trained)
        self._layers = layers
        self._names = names
        self._stash = stash
        self._graph_checked = False

    def forward(self, module: nn.Module, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph that depends on other tensors than the weights.

        Raises:
            OptionError: The layers cannot be compiled, or use weights that are no parameters
                of theirs.
        """
        # Copies of the weights, or their present memory.
        weights = self._weights_of(module)
        given = present = {
            name: self.copies.whole(weight) if self._stash else weight.data
            for name, weight in weights.items()
        }

        # Weights that learn get the gradients of what is given for them.
        if learned := {name: w for name, w in weights.items() if w.requires_grad}:
            with_graph = _GivenFor.apply(  # type: ignore[no-untyped-call]
                [present[name] for name in learned], *learned.values()
            )
            given = present | dict(zip(learned, with_graph, strict=True))

        # Compute, and check the first graph.
        output = self._layers(module, self._editable(leaves), given)
        if not self._graph_checked:
            _check_graph(output, dict(self._names.of_parameters(module)))
            self._graph_checked = True

        def get_output() -> Tree:
            if not self._stash:
                _require_same_memory(present, weights)
            return output

        return output, KeptOutput(get_output)


class _GivenFor(torch.autograd.Function):
    """Tensors to compute with instead of weights, to which their gradients are passed on."""

    @staticmethod
    def forward(ctx: FunctionCtx, given: Sequence[Tensor], *weights: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(given)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor | None) -> Any:
        return None, *gradients


def _check_graph(output: Tree, weights: Mapping[str, Tensor]) -> None:
    """Refuse layers that reach their weights by another way than as parameters.

    Args:
        output: Output of a forward, with its graph.
        weights: Weights of the layers by name.

    Raises:
        OptionError: The graph leads to a weight, not to the tensor that was given for it.
    """
    names = {id(weight): name for name, weight in weights.items()}
    for node in graph_nodes(output, (_GivenFor._backward_cls,)):
        name = names.get(id(getattr(node, "variable", None)))
        if name is not None:
            raise OptionError(
                f"the layers use the weight {name!r} not as a parameter of theirs but from a "
                "list or an attribute of another kind, where the weights of a version cannot "
                "be put in its place; leave compile out"
            )


def _require_same_memory(views: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Refuse weights whose memory is another than in the forward.

    Args:
        views: The weights as they were in the forward, by name.
        weights: The weights by name.

    Raises:
        LinearizeError: The optimizer has replaced the memory of a weight.
    """
    for name, weight in weights.items():
        view = views[name]
        if (view.data_ptr(), view.stride()) != (weight.data_ptr(), weight.stride()):
            raise LinearizeError(
                f"the weight {name!r} was replaced by one in other memory, which a compiled "
                "graph does not see; update it in place, or use linearize='stash'"
            )
