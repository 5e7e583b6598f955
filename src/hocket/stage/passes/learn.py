"""Learning of a signal's network, by a target that has come back."""

import torch

from hocket.errors import PacketError
from hocket.stage.core import StageCore
from hocket.stage.report import ActionReport
from hocket.stage.steps import Steps


def learn(core: StageCore, batch: int) -> Steps[ActionReport]:
    """Train the network of a stage's signal by the gradient that has come back.

    The second step needs the gradients of all replicas.

    Raises:
        PacketError: The batch does not wait for a target, or none has come.
        NonFiniteError: The loss or a gradient is NaN or infinite, and that is to stop the
            training.
    """
    # Receive the target.
    if batch not in core.deferred_targets:
        raise PacketError(f"stage {core.parts.index}: batch {batch} does not wait for a target")
    target = core.deferred_targets.pop(batch)
    received = core.parts.to_next.receive(batch).values
    activation, updater, check = target.activation, core.signal_updater, core.checks.signal
    version = updater.version
    if target.loss is None or received is None or batch in core.setup.skip_batches:
        return ActionReport(activation.epoch, version, skipped=True)

    # Differentiate the loss, weighted with the part of the batch that this process has.
    with core.contexts.computing(batch, "learn"):
        loss = target.loss(received)
    share = None if activation.share == 1 else torch.full_like(loss, activation.share)
    updater.expect_gradients()
    loss.backward(share)

    # Look for NaN and infinity before the weights change.
    fault = check.fault_in_loss(loss)
    if fault is None:
        fault, norm = check.fault_in_gradients(())
    if fault is not None:
        check.require_skippable(fault)
        updater.zero_grad()
        return ActionReport(activation.epoch, version, skipped=True, fault=fault)

    # Update at once: these gradients do not accumulate.
    updater.begin_sums()
    yield
    whole_norm = check.norm_over_replicas(norm, updater.accumulate())
    due = updater.due_epoch(activation.epoch)
    lr = None if due is None else updater.update(due)
    return ActionReport(
        activation.epoch, version, loss=loss.detach(), gradient_norm=whole_norm, lr=lr
    )
