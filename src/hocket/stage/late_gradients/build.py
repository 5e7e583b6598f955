"""From the options of a stage to its linearizer, of compiled layers or of plain ones."""

from torch import nn

from hocket.methods.method import FORWARDS_AGAIN, Linearize, Statistics
from hocket.stage.late_gradients.compiled_graph import CompiledGraph
from hocket.stage.late_gradients.linearizer import (
    Invert,
    Linearizer,
    PlainGraph,
    Recompute,
    StageLayers,
)
from hocket.stage.late_gradients.saved_weights import CopiedWeights, SavedTensorHooks


def build_linearizer(
    linearize: Linearize,
    delay: int,
    statistics: Statistics,
    layers: StageLayers,
    *,
    flushes: bool = False,
    inverted: nn.Module | None = None,
) -> Linearizer:
    """Build the linearizer of a stage; without delay it is always `PlainGraph`.

    Args:
        linearize: Weights that a late gradient is applied at.
        delay: Ticks between a forward and its backward.
        statistics: Passes that update BatchNorm's running statistics under ``recompute``.
        layers: What is known of the layers.
        flushes: The pipeline is flushed, so that its gradients equal back-propagation's.
        inverted: Layers of the stage, if it inverts them; None if it keeps its inputs.
    """
    # Where no update comes between forward and backward, nothing has to be held.
    if delay == 0:
        return PlainGraph(layers)

    # The forward is repeated, or its graph is kept with old or live weights.
    if inverted is not None:
        return Invert(layers, inverted)
    if linearize in FORWARDS_AGAIN:
        return Recompute(layers, statistics, keep_buffers=flushes)
    stash = linearize == "stash"
    if layers.compiled is not None:
        return CompiledGraph(layers, stash=stash)
    if stash and layers.known.weight_places:
        return CopiedWeights(layers)
    return SavedTensorHooks(layers, stash=stash)
