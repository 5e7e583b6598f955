"""The state of a stage between two ticks: written as plain values, and restored from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hocket.stage.in_flight import ForwardedBatch
from hocket.stage.memory.forward_state import (
    ForwardState,
    mismatches,
    named_tensors,
    set_tensors,
)
from hocket.stage.passes.back_propagate import graph_leaves
from hocket.stage.passes.deferred_targets import DeferredTarget
from hocket.transport.packet import Activation
from hocket.tree import Tree, map_tensors, tensors

if TYPE_CHECKING:
    from hocket.stage.stage import Stage


def write_state(stage: Stage) -> Tree:
    """Return all that a stage remembers between two ticks, as plain values.

    Its tensors are the stage's own: write them to disk before the next tick.

    Raises:
        CheckpointError: A batch is in flight, and the state of its forward was not kept.
    """
    return {
        "layers": named_tensors(stage.module),
        "signal": named_tensors(stage.signal_network),
        "updater": stage.updater.state_dict(),
        "signal_updater": stage.signal_updater.state_dict(),
        "held_weights": stage.weights.state_dict(),
        "remedies": stage.updater.remedies.state_dict(),
        "loss_scale": stage.loss_scale.state_dict(),
        "in_flight": stage.in_flight.state_dict(),
        "deferred_targets": stage.deferred_targets.state_dict(),
        "to_previous": stage.to_previous.state_dict(),
        "to_next": stage.to_next.state_dict(),
        "epochs": dict(stage.epochs),
        "send_stats": vars(stage.send_stats).copy(),
    }


def read_state(stage: Stage, state: Tree) -> None:
    """Let a stage continue from the state of a stage of the same layers and method."""
    in_flight, deferred, to_previous, to_next = map_tensors(
        lambda tensor: tensor.to(stage.device),
        [state[name] for name in ("in_flight", "deferred_targets", "to_previous", "to_next")],
    )
    # Before forwards are repeated: some are at the newest weights.
    set_tensors(stage.module, state["layers"])
    for batch in in_flight:
        _repeat_forward(stage, batch)
    for target in deferred:
        _defer_target(stage, Activation(**target["activation"]), target["output"])
    # And afterwards, as others are at older weights, or move statistics.
    set_tensors(stage.module, state["layers"])
    set_tensors(stage.signal_network, state["signal"])
    stage.updater.load_state_dict(state["updater"])
    stage.signal_updater.load_state_dict(state["signal_updater"])
    stage.weights.load_state_dict(state["held_weights"])
    stage.updater.remedies.load_state_dict(state["remedies"])
    stage.loss_scale.load_state_dict(state["loss_scale"])
    stage.epochs = dict(state["epochs"])
    vars(stage.send_stats).update(state["send_stats"])
    stage.to_previous.load_state_dict(to_previous)
    stage.to_next.load_state_dict(to_next)


def state_mismatches(stage: Stage, state: Tree) -> list[str]:
    """Return in words all that keeps a state from being one of this stage."""
    place = f"stage {stage.index}"
    return [
        *mismatches(stage.module, state["layers"], place),
        *mismatches(stage.signal_network, state["signal"], f"{place}, signal"),
        *stage.updater.mismatches(state["updater"], place),
    ]


def _repeat_forward(stage: Stage, state: Tree) -> None:
    """Forward a batch in flight again, as it was forwarded before the checkpoint."""
    activation = Activation(**state["activation"])
    differentiable, version = state["differentiable"], state["version"]
    if activation.skipped:
        stage.in_flight.add(ForwardedBatch.skipped(activation, differentiable, version))
        return
    if stage.forward_check.edits_weights:
        stage.linearizer.after_update()
    forward_state, leaves = ForwardState(**state["past"]), graph_leaves(activation)
    with stage.passes.computing(activation.batch, "forward"):
        output = stage.linearizer.rebuild_output(stage.module, leaves, forward_state)
    stage.in_flight.add(
        ForwardedBatch(activation, leaves, output, differentiable, version, forward_state)
    )


@torch.no_grad()
def _defer_target(stage: Stage, activation: Activation, output: Tree) -> None:
    """Build a deferred loss again, which depends on nothing but what it is built from."""
    if activation.skipped:
        stage.deferred_targets.skip(activation)
        return
    unknown = (None,) * len(tensors(output))
    roots = stage.backward_roots(activation.batch, output, activation.targets, unknown)
    assert roots.deferred is not None, "it was one of the same signal"
    stage.deferred_targets.add(DeferredTarget(roots.deferred, activation, output))
