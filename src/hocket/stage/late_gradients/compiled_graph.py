"""Linearization of compiled layers: ``stash`` and ``live`` without hooks on saved tensors.

The layers are called with other tensors instead of their weights: copies of the version,
or views of the present memory, whose changes autograd does not count. The gradients of these
tensors are passed on to the weights.
"""

from hocket.errors import LinearizeError, OptionError
from hocket.stage.late_gradients.linearizer import (
    KeptOutput,
    Linearizer,
    OutputOfCopies,
    StageLayers,
)
from hocket.stage.layers.compatibility import graph_nodes
from hocket.stage.weight_copies.copies import VersionCopies
from hocket.tree import Tree


class CompiledGraph(Linearizer):
    """Graph of compiled layers, with the weights of the forward (stash) or present ones (live).

    Args:
        layers: What is known of the layers, which must recompute nothing for ``live``.
        stash: Differentiate at the weights of the forward.
    """

    copies: VersionCopies

    def __init__(self, layers: StageLayers, *, stash: bool) -> None:
        super().__init__(layers, VersionCopies())
        assert layers.compiled is not None
        self._layers = layers.compiled
        self._stash = stash
        self._graph_checked = False

    def forward(self, leaves: Tree) -> tuple[Tree, KeptOutput]:
        """Forward with a graph that depends on other tensors than the weights.

        Raises:
            OptionError: The layers cannot be compiled, or use weights that are no parameters
                of theirs.
            LinearizeError: The optimizer has replaced the memory of a weight.
        """
        # Forward with copies of the weights, or with their present memory.
        weights = self._weights()
        given = {}
        for name, weight in weights.items():
            copy = self.copies.whole(weight) if self._stash else weight.data
            given[name] = copy.requires_grad_(weight.requires_grad)
        output = self._layers(self._editable(leaves), given)

        # Refuse layers that reach their weights by another way than as parameters.
        if not self._graph_checked:
            named = self._names.of_parameters(self._module)
            names = {id(weight): name for name, weight in named}
            for node in graph_nodes(output):
                reached = names.get(id(getattr(node, "variable", None)))
                if reached is not None:
                    raise OptionError(
                        f"the layers use the weight {reached!r} not as a parameter of theirs "
                        "but from a list or an attribute of another kind, where the weights of "
                        "a version cannot be put in its place; leave compile out"
                    )
            self._graph_checked = True

        # Refuse weights that are in other memory than in the forward when the gradient comes.
        looked_at = {} if self._stash else weights

        def get_output() -> Tree:
            for name, weight in looked_at.items():
                view = given[name]
                if (view.data_ptr(), view.stride()) != (weight.data_ptr(), weight.stride()):
                    raise LinearizeError(
                        f"the weight {name!r} was replaced by one in other memory, which a "
                        "compiled graph does not see; update it in place, or use "
                        "linearize='stash'"
                    )
            return output

        return output, OutputOfCopies(get_output, [*weights.values()], [*given.values()])
