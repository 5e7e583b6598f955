"""Losses of a stage's signal that wait for the targets to learn from.

They are stored by the number of their batch, so that the error for a lost one names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hocket.errors import PacketError
from hocket.signals.signal import DeferredLoss
from hocket.stage.report import ActionReport
from hocket.transport.packet import Activation
from hocket.tree import Tree

if TYPE_CHECKING:
    from hocket.stage.stage import Stage


@dataclass(frozen=True)
class DeferredTarget:
    """One batch whose target has not come back yet.

    Attributes:
        loss: Loss of the signal's network, given the target; None if the batch is skipped.
        activation: Packet that the stage received.
        output: Output of the stage, detached.
    """

    loss: DeferredLoss | None
    activation: Activation
    output: Tree


class DeferredTargets:
    """Batches of one stage whose targets have not come back yet."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._waiting: dict[int, DeferredTarget] = {}

    def add(self, deferred: DeferredTarget) -> None:
        """Add a batch."""
        self._waiting[deferred.activation.batch] = deferred

    def skip(self, activation: Activation) -> None:
        """Add a batch that is not learned from, though a packet comes back for it."""
        self.add(DeferredTarget(None, activation.without_values(), None))

    def pop(self, batch: int) -> DeferredTarget:
        """Remove a batch whose target has come, and return it.

        Raises:
            PacketError: There is no such batch.
        """
        if batch not in self._waiting:
            raise PacketError(f"stage {self._stage}: batch {batch} does not wait for a target")
        return self._waiting.pop(batch)

    def state_dict(self) -> list[Tree]:
        """Return the packets and the outputs that the losses are built from."""
        return [
            {"activation": vars(deferred.activation), "output": deferred.output}
            for deferred in self._waiting.values()
        ]


def learn_from_target(stage: Stage, batch: int) -> ActionReport:
    """Train the network of a stage's signal by the gradient that has come back.

    Args:
        stage: The stage.
        batch: Number of the batch.

    Raises:
        PacketError: The batch does not wait for a target, or none has come.
        NonFiniteError: The loss or a gradient is NaN or infinite, and that is to stop the
            training.
    """
    target = stage.deferred_targets.pop(batch)
    received = stage.to_next.receive(batch).values
    activation, updater, check = target.activation, stage.signal_updater, stage.signal_check
    version = updater.version
    if target.loss is None or received is None or batch in stage.skip_batches:
        return ActionReport(activation.epoch, version, skipped=True)
    with stage.passes.computing(batch, "learn"):
        loss = target.loss(received)
    share = None if activation.share == 1 else torch.full_like(loss, activation.share)
    loss.backward(share)
    fault = check.fault_in_loss(loss)
    if fault is None:
        fault, norm = check.fault_in_gradients(())
    if fault is not None:
        check.require_skippable(fault)
        updater.zero_grad()
        return ActionReport(activation.epoch, version, skipped=True, fault=fault)
    whole_norm = check.norm_over_replicas(norm, updater.accumulate())
    lr = updater.update(activation.epoch)
    return ActionReport(
        activation.epoch, version, loss=loss.detach(), gradient_norm=whole_norm, lr=lr
    )
