"""Forwards that a stage does not train on: for evaluation, for others, and once more."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hocket.modes import evaluation_mode
from hocket.signals.losses import class_dimension
from hocket.stage.layers.gradient_flow import find_tables
from hocket.stage.memory.forward_state import forward_without_buffer_updates
from hocket.stage.passes.back_propagate import graph_leaves
from hocket.stage.passes.prediction import Prediction, add_to_ensemble
from hocket.stage.passes.skip import send_skipped
from hocket.stage.report import ActionReport
from hocket.tree import Tree, copy_tensors, count_batch, count_samples, tensors

if TYPE_CHECKING:
    from hocket.stage.stage import Stage


def predict_batch(
    stage: Stage, values: Tree, targets: Tree, ensemble: Tensor | None
) -> Prediction:
    """Forward a batch for evaluation, in the precision of training.

    Args:
        stage: The stage.
        values: Output of the stage before, with tensors of shape (B, ...).
        targets: Targets of the batch. Only class indices have exits.
        ensemble: Class scores of the exits of the stages before, (B, C) or (B, T, C).
    """
    with evaluation_mode(stage.signal_network), stage.passes.autocast():
        output = stage.to_outgoing(stage.module(copy_tensors(values)))
        scores = stage.signal.predict(stage.signal_network, output)
    # If stages before have exits, the end of the network is one more.
    if scores is None and ensemble is not None:
        scores = output
    samples = count_batch(targets, output) or count_samples(values)
    if scores is None or class_dimension(scores, targets) is None:
        return Prediction(stage.index, output, targets, None, None, samples)
    together = add_to_ensemble(ensemble, scores)
    return Prediction(stage.index, output, targets, scores, together, samples)


def pass_on(stage: Stage, batch: int) -> ActionReport:
    """Forward a batch for the stages behind, as a stage that has finished training.

    Args:
        stage: The stage.
        batch: Number of the batch.

    Raises:
        PacketError: The batch has not come.
        NonFiniteError: The output is NaN or infinite, and that is to stop the training.
    """
    activation = stage.to_previous.receive(batch)
    with torch.no_grad(), evaluation_mode(stage.module), stage.passes.autocast():
        output = stage.module(copy_tensors(activation.values))
    outputs = tensors(output)
    fault, _ = stage.check.fault_in_output(outputs, lambda: [True] * len(outputs))
    if fault is not None:
        return send_skipped(stage, activation, fault)
    leaves = tensors(graph_leaves(activation))
    none = (False,) * len(outputs)  # nothing is known of a stage that has not trained
    find_flow = partial(stage.flow.through, outputs, leaves, lambda: list(none))
    tables = find_tables(outputs, find_flow)
    stage.send(activation, output, none, stage.find_exact(tables))
    return ActionReport(activation.epoch, stage.updater.version)


def forward_again(stage: Stage, batch: int, values: Tree) -> Tree:
    """Forward a batch once more, at the present weights, leaving no trace.

    Args:
        stage: The stage.
        batch: Number of the batch.
        values: Output of the stage before, with tensors of shape (B, ...).
    """
    with stage.passes.computing(batch, "forward"):
        return forward_without_buffer_updates(stage.module, copy_tensors(values))
