"""From the options of a stage to its linearizer, of compiled layers or of plain ones."""

from hocket.methods.method import Linearize, Statistics
from hocket.stage.compiled import CompiledLayers
from hocket.stage.compiled_graph import CompiledGraph
from hocket.stage.forward_state import run_layers
from hocket.stage.linearize import Editable, Linearizer, PlainGraph, Recompute, SavedTensorHooks
from hocket.tree import copy_tensors


def build_linearizer(
    linearize: Linearize,
    delay: int,
    statistics: Statistics,
    keep_states: bool = False,
    editable: Editable = copy_tensors,
    compiled: CompiledLayers | None = None,
) -> Linearizer:
    """Build the linearizer of a stage; without delay it is always `PlainGraph`.

    Args:
        linearize: Weights that a late gradient is applied at.
        delay: Ticks between a forward and its backward.
        statistics: Passes that update BatchNorm's running statistics under ``recompute``.
        keep_states: Keep the state of each forward, so that checkpoints can be written.
        editable: Returns an input that the layers may edit.
        compiled: The layers, if they are compiled.
    """
    run = compiled or run_layers
    if delay == 0:
        return PlainGraph(editable, run, keep_states=keep_states)
    if linearize == "recompute":
        return Recompute(statistics, editable, run)
    stash = linearize == "stash"
    if compiled is not None:
        return CompiledGraph(compiled, stash=stash, keep_states=keep_states, editable=editable)
    return SavedTensorHooks(stash=stash, keep_states=keep_states, editable=editable)
