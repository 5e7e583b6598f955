"""Measurements of one action of a stage."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ActionReport:
    """Measurements of one action; those that its kind of action does not have are None.

    Attributes:
        epoch: Epoch of the batch.
        version: Number of updates that the stage's weights had seen before the action.
        staleness: Number of updates between the forward of a batch and this backward.
        loss: Loss of a backward, if the stage computes one; or of the signal's network, for
            the action that learns from a target.
        gradient_norm: Euclidean norm of the batch's gradient, for the same actions.
        lr: Learning rate of an update, or of learning from a target.
        skipped: True if nothing was done, because the batch is not learned from, or an update
            had no gradients.
        fault: Description of a NaN or infinity that this stage was the first to see.
    """

    epoch: int
    version: int
    staleness: int | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    lr: float | None = None
    skipped: bool = False
    fault: str | None = None
