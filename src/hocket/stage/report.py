"""What an action of a stage is known by afterwards."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """What an action came to.

    Attributes:
        epoch: The epoch of the batch.
        version: Updates that the stage's weights had seen when the action ran.
        staleness: For a backward: updates since the forward of the same batch.
        loss: For a backward: the loss that the stage saw, if it saw one; for a target: the
            loss of the signal's network.
        gradient_norm: For these two: Euclidean norm of the batch's gradient.
        lr: For an update or a target: the learning rate.
        skipped: Whether nothing was done, as the batch is not learned from, or an update had
            no gradients.
        fault: What was NaN or infinite, in words, where this stage was the first to see it.
    """

    epoch: int
    version: int
    staleness: int | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    lr: float | None = None
    skipped: bool = False
    fault: str | None = None
