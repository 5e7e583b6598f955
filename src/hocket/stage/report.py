"""Measurements of one action of a stage."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

Number: TypeAlias = float | Tensor | Callable[[], float | Tensor | None] | None
"""A number, or a scalar whose number is read from its device when it is needed."""

_MEASUREMENTS = (
    "epoch", "version", "staleness", "loss", "targets", "gradient_norm", "lr", "skipped",
    "fault",
)  # fmt: skip


class ActionReport:
    """Measurements of one action; those that its kind of action does not have are None.

    Loss, targets and norm stay on their device until they are read, because the device has to
    complete all its work for that.

    Args:
        epoch: Epoch of the batch.
        version: Number of updates that the stage's weights had seen before the action.
        staleness: Number of updates between the forward of a batch and this backward.
        loss: Loss of a backward, if the stage computes one; or of the signal's network, for
            the action that learns from a target.
        targets: Number of class indices, or else of samples, that the loss of a backward is
            the mean over; the sum of their weights if classes have weights.
        gradient_norm: Euclidean norm of the batch's gradient, for the same actions.
        lr: Learning rate of an update, or of learning from a target.
        skipped: True if nothing was done, because the batch is not learned from, or an update
            had no gradients.
        fault: Description of a NaN or infinity that this stage was the first to see.
        parts: Reports of all replicas, for a report of their whole batch.
    """

    def __init__(
        self,
        epoch: int,
        version: int,
        *,
        staleness: int | None = None,
        loss: Number = None,
        targets: Number = None,
        gradient_norm: Number = None,
        lr: float | None = None,
        skipped: bool = False,
        fault: str | None = None,
        parts: Sequence["ActionReport"] = (),
    ) -> None:
        self.epoch = epoch
        self.version = version
        self.staleness = staleness
        self.lr = lr
        self.skipped = skipped
        self.fault = fault
        self.parts = parts
        self._loss = loss
        self._targets = targets
        self._gradient_norm = gradient_norm

    @property
    def has_loss(self) -> bool:
        """True if the action has a loss, which is not read for this answer."""
        return self._loss is not None

    @property
    def loss(self) -> float | None:
        """Loss of a backward or of learning from a target; None if there is none."""
        self._loss = _read(self._loss)
        return self._loss

    @property
    def targets(self) -> float | None:
        """Number of targets that the loss of a backward is the mean over; None without one."""
        self._targets = _read(self._targets)
        return self._targets

    @property
    def gradient_norm(self) -> float | None:
        """Euclidean norm of the batch's gradient; None if the action computes none."""
        self._gradient_norm = _read(self._gradient_norm)
        return self._gradient_norm

    def read(self) -> None:
        """Read all measurements from their device.

        Where every tick waits for the device anyway, none should stay there: small tensors that
        outlive the large ones of their batch split the heap of a CPU, which then grows.
        """
        self.values()

    def values(self) -> dict[str, Any]:
        """Return all measurements by name, read from their device."""
        return {name: getattr(self, name) for name in _MEASUREMENTS}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionReport) and self.values() == other.values()

    def __hash__(self) -> int:
        return hash((self.epoch, self.version, self.skipped))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values().items())
        return f"ActionReport({values})"


def _read(number: Number) -> float | None:
    if callable(number):
        number = number()
    return number.item() if isinstance(number, Tensor) else number
