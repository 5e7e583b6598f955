"""Batches that a stage does not train on, as something is NaN or infinite, or as is asked for.

A skipped batch crosses every edge like any other, without values, so that every packet that a
neighbour waits for comes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hocket.signals.signal import expects_answer
from hocket.stage.in_flight import ForwardedBatch
from hocket.stage.report import ActionReport
from hocket.transport.packet import Activation, Gradient

if TYPE_CHECKING:
    from hocket.stage.stage import Stage


def skip_forward(
    stage: Stage, activation: Activation, fault: str | None = None
) -> ActionReport:
    """Forward nothing of a batch that is skipped from this stage on.

    Args:
        stage: The stage.
        activation: Packet of the batch, from the stage before.
        fault: The first value that is NaN or infinite, in words; None if the batch arrived
            as one to skip.

    Raises:
        NonFiniteError: The fault is to stop the training, or outlives the batch.
    """
    report = send_skipped(stage, activation, fault)
    skipped = ForwardedBatch.skipped(
        activation, (expects_answer(stage.signal),), report.version
    )
    stage.in_flight.add(skipped)
    return report


def send_skipped(stage: Stage, activation: Activation, fault: str | None) -> ActionReport:
    """Tell the next stage that a batch is skipped.

    Args:
        stage: The stage.
        activation: Packet of the batch, from the stage before.
        fault: The first value that is NaN or infinite, in words, if there is one.

    Raises:
        NonFiniteError: The fault is to stop the training, or outlives the batch.
    """
    stage.check.require_skippable(fault)
    empty = activation.without_values()
    stage.to_next.send(replace(empty, differentiable=(expects_answer(stage.signal),)))
    return ActionReport(activation.epoch, stage.updater.version, skipped=True, fault=fault)


def skip_backward(
    stage: Stage, activation: Activation, fault: str | None = None, *, overflowed: bool = False
) -> ActionReport:
    """Back-propagate nothing of a batch that is skipped, and tell the stage before.

    Args:
        stage: The stage.
        activation: Packet of the batch, from the stage before.
        fault: The first value that is NaN or infinite, in words, if there is one.
        overflowed: True if the stage's loss scale was too large: no fault of the batch.

    Raises:
        NonFiniteError: The fault is to stop the training, or outlives the batch.
    """
    stage.updater.zero_grad()  # also if the training stops here, and another one follows
    if overflowed:
        fault = (
            f"{fault}; the loss scale of the stage is {stage.loss_scale.factor:g} from now on"
        )
    else:
        stage.check.require_skippable(fault)
    batch, epoch = activation.batch, activation.epoch
    stage.gradients = []
    if any(activation.differentiable):
        stage.to_previous.send(Gradient(batch, None))
    if stage.signal.learns_from_gradient:
        stage.deferred_targets.skip(activation)
    stage.epochs[batch] = epoch
    return ActionReport(epoch, stage.updater.version, skipped=True, fault=fault)
