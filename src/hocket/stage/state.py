"""The state of a stage between two ticks: written as plain values, and restored from them."""

import torch

from hocket.stage.core import StageCore
from hocket.stage.in_flight import DeferredTarget, ForwardedBatch
from hocket.stage.passes.edges import backward_roots, graph_leaves
from hocket.stage.weight_copies.forward_state import (
    ForwardState,
    mismatches,
    named_tensors,
    set_tensors,
)
from hocket.transport.packet import Activation
from hocket.tree import Tree, map_tensors, tensors


def write_state(core: StageCore) -> Tree:
    """Return everything that a stage remembers between two ticks, as plain values.

    Its tensors are the stage's own: write them to disk before the next tick.

    Raises:
        CheckpointError: A batch is in flight, and the state of its forward was not kept.
    """
    parts = core.parts
    return {
        "layers": named_tensors(parts.module),
        "signal": named_tensors(parts.signal_network),
        "updater": core.updater.state_dict(),
        "signal_updater": core.signal_updater.state_dict(),
        "held_weights": core.weights.state_dict(),
        "remedies": core.updater.remedies.state_dict(),
        "loss_scale": core.loss_scale.state_dict(),
        "in_flight": core.in_flight.state_dict(),
        "deferred_targets": [
            {"activation": vars(target.activation), "output": target.output}
            for target in core.deferred_targets.values()
        ],
        "to_previous": parts.to_previous.state_dict(),
        "to_next": parts.to_next.state_dict(),
        "epochs": dict(core.epochs),
        "send_stats": vars(parts.send_stats).copy(),
    }


def read_state(core: StageCore, state: Tree) -> None:
    """Let a stage continue from the state of a stage of the same layers and method."""
    parts = core.parts
    in_flight, deferred, to_previous, to_next = map_tensors(
        lambda tensor: tensor.to(core.setup.device),
        [state[name] for name in ("in_flight", "deferred_targets", "to_previous", "to_next")],
    )

    # Weights before forwards are repeated: some are at the newest weights.
    set_tensors(parts.module, state["layers"])
    for batch in in_flight:
        _repeat_forward(core, batch)
    for target in deferred:
        _defer_target(core, Activation(**target["activation"]), target["output"])

    # And afterwards, as others are at older weights, or move statistics.
    set_tensors(parts.module, state["layers"])
    set_tensors(parts.signal_network, state["signal"])

    # What remembers something besides weights.
    core.updater.load_state_dict(state["updater"])
    core.signal_updater.load_state_dict(state["signal_updater"])
    core.weights.load_state_dict(state["held_weights"])
    core.updater.remedies.load_state_dict(state["remedies"])
    core.loss_scale.load_state_dict(state["loss_scale"])
    core.epochs = dict(state["epochs"])
    vars(parts.send_stats).update(state["send_stats"])
    parts.to_previous.load_state_dict(to_previous)
    parts.to_next.load_state_dict(to_next)
    core.checks.late.forget()


def state_mismatches(core: StageCore, state: Tree) -> list[str]:
    """Return one line for each reason why a state is not one of this stage."""
    place = f"stage {core.parts.index}"
    return [
        *mismatches(core.parts.module, state["layers"], place),
        *mismatches(core.parts.signal_network, state["signal"], f"{place}, signal"),
        *core.updater.mismatches(state["updater"], place),
    ]


def _repeat_forward(core: StageCore, state: Tree) -> None:
    """Forward a batch in flight again, as it was forwarded before the checkpoint."""
    activation = Activation(**state["activation"])
    differentiable, version = state["differentiable"], state["version"]
    if activation.skipped:
        core.in_flight.add(ForwardedBatch.skipped(activation, differentiable, version))
        return
    if core.checks.forward.edits_weights:
        core.linearizer.after_update()
    forward_state, leaves = ForwardState(**state["past"]), graph_leaves(activation)
    with core.contexts.computing(activation.batch, "forward"):
        output = core.linearizer.rebuild_output(core.parts.module, leaves, forward_state)
    core.in_flight.add(
        ForwardedBatch(activation, leaves, output, differentiable, version, forward_state)
    )


@torch.no_grad()
def _defer_target(core: StageCore, activation: Activation, output: Tree) -> None:
    """Build a deferred loss again, which depends on nothing but what it is built from."""
    if activation.skipped:
        core.deferred_targets[activation.batch] = DeferredTarget(None, activation, None)
        return
    unknown = (None,) * len(tensors(output))
    roots = backward_roots(core, activation.batch, output, activation.targets, unknown)
    assert roots.deferred is not None, "it was one of the same signal"
    target = DeferredTarget(roots.deferred, activation, output)
    core.deferred_targets[activation.batch] = target
