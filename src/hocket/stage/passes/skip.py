"""Batches that a stage skips, because a value is NaN or infinite or because the user asked.

A skipped batch crosses every edge like any other, without values, so that every packet that a
neighbour waits for comes.
"""

from dataclasses import replace

from hocket.stage.core import StageCore
from hocket.stage.in_flight import NOT_KEPT, DeferredTarget, ForwardedBatch
from hocket.stage.report import ActionReport
from hocket.transport.packet import Activation, Gradient


def skip_forward(
    core: StageCore, activation: Activation, fault: str | None = None
) -> ActionReport:
    """Forward nothing of a batch that is skipped from this stage on.

    Args:
        core: The stage.
        activation: Packet of the batch, from the stage before.
        fault: The first value that is NaN or infinite, described; None if the batch arrived
            as one to skip.

    Raises:
        NonFiniteError: The fault is to stop the training, or outlives the batch.
    """
    core.checks.layers.require_skippable(fault)
    empty, answered = activation.without_values(), (core.parts.signal.expects_answer,)
    core.parts.to_next.send(replace(empty, differentiable=answered))
    version = core.updater.version
    core.in_flight[activation.batch] = ForwardedBatch(
        empty, None, NOT_KEPT, answered, version, None
    )
    return ActionReport(activation.epoch, version, skipped=True, fault=fault)


def skip_backward(
    core: StageCore,
    activation: Activation,
    fault: str | None = None,
    *,
    overflowed: bool = False,
) -> ActionReport:
    """Back-propagate nothing of a batch that is skipped, and tell the stage before.

    Args:
        core: The stage.
        activation: Packet of the batch, from the stage before.
        fault: The first value that is NaN or infinite, described; None if there is none.
        overflowed: True if the stage's loss scale was too large: no fault of the batch.

    Raises:
        NonFiniteError: The fault is to stop the training, or outlives the batch.
    """
    # Drop the gradients first: if the training stops here, another one may follow.
    core.updater.zero_grad()

    # Stop at a fault, unless it may be skipped.
    if overflowed:
        scale = core.loss_scale.factor
        fault = f"{fault}; the loss scale of the stage is {scale:g} from now on"
    else:
        core.checks.layers.require_skippable(fault)

    # Tell the stage before, and keep what later actions on the batch need.
    core.gradients = []
    if core.parts.previous_waits(activation):
        core.parts.to_previous.send(Gradient(activation.batch, None))
    if core.parts.signal.learns_from_gradient:
        empty = DeferredTarget(None, activation.without_values(), None)
        core.deferred_targets[activation.batch] = empty
    core.epochs[activation.batch] = activation.epoch
    return ActionReport(activation.epoch, core.updater.version, skipped=True, fault=fault)
