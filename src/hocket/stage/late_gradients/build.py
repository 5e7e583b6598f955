"""From the options of a stage to its linearizer, of compiled layers or of plain ones."""

from hocket.methods.method import FORWARDS_AGAIN, Method
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
    method: Method, delay: int, layers: StageLayers, *, inverts: bool = False
) -> Linearizer:
    """Build the linearizer of a stage; without delay it is always `PlainGraph`.

    Args:
        method: The method.
        delay: Ticks between a forward and its backward.
        layers: What is known of the layers.
        inverts: True if the stage computes its input from its output.
    """
    # Where no update comes between forward and backward, nothing has to be held.
    if delay == 0:
        return PlainGraph(layers)

    # The forward is repeated, or its graph is kept with old or live weights.
    if inverts:
        return Invert(layers)
    if method.linearize in FORWARDS_AGAIN:
        return Recompute(layers, method.statistics, keep_buffers=method.flushes)
    stash = method.linearize == "stash"
    if layers.compiled is not None:
        return CompiledGraph(layers, stash=stash)
    if stash and layers.known.weight_places:
        return CopiedWeights(layers)
    return SavedTensorHooks(layers, stash=stash)
