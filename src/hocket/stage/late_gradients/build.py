"""From the options of a stage to its linearizer, of compiled layers or of plain ones."""

from collections.abc import Sequence

from torch import nn

from hocket.methods.method import Linearize, Statistics
from hocket.stage.late_gradients.compiled import CompiledLayers
from hocket.stage.late_gradients.compiled_graph import CompiledGraph
from hocket.stage.late_gradients.copied_weights import CopiedWeights
from hocket.stage.late_gradients.recompute import Recompute
from hocket.stage.late_gradients.stash_or_live import Linearizer, PlainGraph, SavedTensorHooks
from hocket.stage.layers.known_layers import KnownLayers
from hocket.stage.layers.network_names import NetworkNames
from hocket.stage.weight_copies.forward_state import run_layers
from hocket.tree import copy_tensors


def build_linearizer(
    linearize: Linearize,
    delay: int,
    statistics: Statistics,
    keep_states: bool = False,
    layers: KnownLayers | None = None,
    compiled: CompiledLayers | None = None,
    names: NetworkNames | None = None,
    trained: Sequence[nn.Parameter] = (),
    *,
    flushes: bool = False,
) -> Linearizer:
    """Build the linearizer of a stage; without delay it is always `PlainGraph`.

    Args:
        linearize: Weights that a late gradient is applied at.
        delay: Ticks between a forward and its backward.
        statistics: Passes that update BatchNorm's running statistics under ``recompute``.
        keep_states: Keep the state of each forward, so that checkpoints can be written.
        layers: What is known of the layers; None for nothing.
        compiled: The layers, if they are compiled.
        names: Names of the weights in the network.
        trained: Weights that have an optimizer.
        flushes: The pipeline is flushed, so that its gradients equal back-propagation's.
    """
    # Where no update comes between forward and backward, nothing has to be held.
    run, names = compiled or run_layers, names or NetworkNames()
    editable = copy_tensors if layers is None else layers.editable
    if delay == 0:
        return PlainGraph(editable, run, keep_states=keep_states)

    # The forward is repeated, or its graph is kept with old or live weights.
    if linearize == "recompute":
        return Recompute(statistics, editable, run, keep_buffers=flushes)
    stash = linearize == "stash"
    if compiled is not None:
        return CompiledGraph(
            compiled,
            names,
            stash=stash,
            keep_states=keep_states,
            editable=editable,
            trained=trained,
        )
    if stash and layers is not None and layers.weight_places:
        return CopiedWeights(layers, names, keep_states=keep_states, trained=trained)
    return SavedTensorHooks(
        names, stash=stash, keep_states=keep_states, editable=editable, trained=trained
    )
