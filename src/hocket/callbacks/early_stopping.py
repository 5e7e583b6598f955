"""Callback that stops a training whose results no longer improve."""

from typing import Any

from hocket.callbacks.best_epoch import BestEpoch, Mode
from hocket.errors import OptionError
from hocket.training.results.metrics import EpochResult
from hocket.training.view import TrainerView


class EarlyStopping(BestEpoch):
    """Stops the training after some epochs in a row without a better result.

    The state is part of checkpoints: a resumed training stops after the same epoch, and one
    that had stopped stays so, unless it is resumed with more patience. Batches in flight at the
    stop stay there, so that the weights are those that the last epoch was evaluated with.

    Args:
        metric: ``test_error``, ``test_loss``, ``train_loss``, or the name of a metric of the
            trainer.
        patience: Epochs in a row without a better result after which the training stops.
        min_delta: Amount by which a result has to be better than the best one before.
        mode: ``min`` if low values are better, or ``max``.

    Attributes:
        best_epoch: Number of the best epoch so far, from 0; None before the first.

    Raises:
        OptionError: An option is out of its range.

    >>> EarlyStopping("test_loss", patience=5).exhausted  # for `fit(..., callbacks=[...])`
    False
    """

    def __init__(
        self,
        metric: str = "test_error",
        *,
        patience: int = 3,
        min_delta: float = 0.0,
        mode: Mode = "min",
    ) -> None:
        if not (isinstance(patience, int) and patience >= 1):
            raise OptionError(f"patience is {patience!r}; use a whole number of at least 1")
        super().__init__(metric, min_delta, mode)
        self._patience = patience
        self._waited = 0

    @property
    def exhausted(self) -> bool:
        """True once the patience has run out."""
        return self._waited >= self._patience

    @property
    def reason(self) -> str:
        """Reason for the stop, with epochs counted from 1; empty without a stop."""
        if not self.exhausted:
            return ""
        metric = self._metric.replace("_", " ")
        waited = f"for {self._waited} epoch{'s' if self._waited > 1 else ''}"
        if self.best_epoch is None:
            return f"the {metric} was not finite {waited}"
        enough = f" by more than {self._min_delta:g}" if self._min_delta else ""
        passed = "fallen below" if self._mode == "min" else "risen above"
        return (
            f"the {metric} has not {passed} {self._value:.4g}{enough} {waited}, since "
            f"epoch {self.best_epoch + 1}"
        )

    def on_start(self, trainer: TrainerView, state: dict[str, Any] | None) -> None:
        """Begin to count, or stop at once if the training had stopped before it was resumed.

        Raises:
            OptionError: Epochs do not end for all stages together, or another metric was
                watched before.
        """
        super().on_start(trainer, state and state["best"])
        self._waited = state["waited"] if state else 0
        self._stop_if_exhausted(trainer)

    def on_epoch(self, trainer: TrainerView, result: EpochResult) -> None:
        """Count an epoch that is not better than the best one.

        Raises:
            OptionError: The epoch was not evaluated as the metric needs it.
        """
        self._waited = 0 if self._improves(result) else self._waited + 1
        self._stop_if_exhausted(trainer)

    def _stop_if_exhausted(self, trainer: TrainerView) -> None:
        if self.exhausted:
            trainer.request_stop()

    def state_dict(self) -> dict[str, Any]:
        """Return the best epoch, and the epochs since then."""
        return {"best": super().state_dict(), "waited": self._waited}
