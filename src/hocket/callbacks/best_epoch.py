"""The best epoch of a training by one of its results."""

import math
from typing import Any, Literal, TypeAlias

from hocket.errors import OptionError
from hocket.options.ranges import check_choice
from hocket.training.results.metrics import EpochResult, read_metric
from hocket.training.view import TrainerView

Mode: TypeAlias = Literal["min", "max"]
"""Values of a metric that are better: low ones or high ones."""


class BestEpoch:
    """Best epoch so far: the first with the best value of a metric.

    Args:
        owner: Name of the callback that watches, for messages.
        metric: ``test_error``, ``test_loss``, ``train_loss``, or the name of a metric of the
            trainer.
        min_delta: Amount by which a value has to be better than the best one before.
        mode: ``min`` if low values are better, or ``max``.

    Attributes:
        metric: The metric.
        mode: The mode.
        number: Number of the best epoch, from 0; None before the first.
        value: The best value; None before the first epoch.

    Raises:
        OptionError: The mode is unknown, or the amount is negative.
    """

    def __init__(
        self, owner: str, metric: str, min_delta: float = 0.0, mode: Mode = "min"
    ) -> None:
        check_choice("mode", mode, ("min", "max"))
        if not min_delta >= 0:
            raise OptionError(f"min_delta is {min_delta}; use a number of at least 0")
        self.metric = metric
        self.mode = mode
        self.number: int | None = None
        self.value: float | None = None
        self._owner = owner
        self._min_delta = min_delta

    def start(self, trainer: TrainerView, state: dict[str, Any] | None) -> None:
        """Begin a ``fit``, or continue one.

        Args:
            trainer: The trainer.
            state: What ``state_dict`` returned; None for a new ``fit``.

        Raises:
            OptionError: The stages count their epochs for themselves, without evaluations, or
                the best epoch so far was that by another metric.
        """
        # Refuse stages whose epochs cannot be compared.
        if not trainer.has_common_epochs:
            raise OptionError(
                f"{self._owner} compares epochs, and the stages run freely in processes of "
                "their own, where they are evaluated at the end only; leave it out, or "
                "train in one process"
            )
        # Begin, or continue with the same metric.
        if state is None:
            self.number = self.value = None
            return
        if state["metric"] != self.metric:
            raise OptionError(
                f"{self._owner} is to watch {self.metric}, and watched {state['metric']} "
                "before this training was resumed; watch that"
            )
        self.number, self.value = state["number"], state["value"]

    def improves(self, result: EpochResult) -> bool:
        """Return True if an epoch is better than all before, and remember it then.

        Raises:
            OptionError: The epoch was not evaluated as the metric needs it.
        """
        value = read_metric(result, self.metric, self._owner)
        sign = 1 if self.mode == "min" else -1
        limit = math.inf if self.value is None else sign * self.value - self._min_delta
        if not sign * value < limit:
            return False
        self.number, self.value = result.number, value
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the number and the value of the best epoch."""
        return {"metric": self.metric, "number": self.number, "value": self.value}
