"""Base class of callbacks that watch for the best epoch of a training by one of its results."""

import math
from typing import Any, Literal, TypeAlias

from hocket.errors import OptionError
from hocket.options.ranges import check_choice
from hocket.training.callback import Callback
from hocket.training.results.metrics import EpochResult, read_metric
from hocket.training.view import TrainerView

Mode: TypeAlias = Literal["min", "max"]
"""Values of a metric that are better: low ones or high ones."""


class BestEpoch(Callback):
    """Callback that knows the best epoch so far: the first with the best value of a metric.

    Args:
        metric: ``test_error``, ``test_loss``, ``train_loss``, or the name of a metric of the
            trainer.
        min_delta: Amount by which a value has to be better than the best one before.
        mode: ``min`` if low values are better, or ``max``.

    Attributes:
        best_epoch: Number of the best epoch so far, from 0; None before the first.

    Raises:
        OptionError: The mode is unknown, or the amount is negative.
    """

    def __init__(self, metric: str, min_delta: float = 0.0, mode: Mode = "min") -> None:
        check_choice("mode", mode, ("min", "max"))
        if not min_delta >= 0:
            raise OptionError(f"min_delta is {min_delta}; use a number of at least 0")
        self.best_epoch: int | None = None
        self._metric = metric
        self._min_delta = min_delta
        self._mode = mode
        self._value: float | None = None

    def on_start(self, trainer: TrainerView, state: dict[str, Any] | None) -> None:
        """Begin to compare epochs, or continue.

        Raises:
            OptionError: Epochs do not end for all stages together, or another metric was
                watched before.
        """
        # Refuse stages whose epochs cannot be compared.
        name = type(self).__name__
        if not trainer.has_common_epochs:
            raise OptionError(
                f"{name} compares epochs, and the stages run freely in processes of "
                "their own, where they are evaluated at the end only; leave it out, or "
                "train in one process"
            )
        # Begin, or continue with the same metric.
        if state is None:
            self.best_epoch = self._value = None
            return
        if state["metric"] != self._metric:
            raise OptionError(
                f"{name} is to watch {self._metric}, and watched {state['metric']} "
                "before this training was resumed; watch that"
            )
        self.best_epoch, self._value = state["number"], state["value"]

    def _improves(self, result: EpochResult) -> bool:
        """Return True if an epoch is better than all before, and remember it then.

        Raises:
            OptionError: The epoch was not evaluated as the metric needs it.
        """
        value = read_metric(result, self._metric, type(self).__name__)
        sign = 1 if self._mode == "min" else -1
        limit = math.inf if self._value is None else sign * self._value - self._min_delta
        if not sign * value < limit:
            return False
        self.best_epoch, self._value = result.number, value
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the number and the value of the best epoch."""
        return {"metric": self._metric, "number": self.best_epoch, "value": self._value}
