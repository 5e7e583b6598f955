"""The best epoch of a training by one of its results."""

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from hocket.errors import OptionError
from hocket.training.metrics import EpochResult

if TYPE_CHECKING:
    from hocket.training.trainer import Trainer

WatchedMetric: TypeAlias = Literal["test_error", "test_loss", "train_loss"]
"""Result of an epoch that is better the lower it is."""


class BestEpoch:
    """Best epoch so far: the first with the lowest value of a metric.

    Args:
        owner: Name of the callback that watches, for messages.
        metric: The metric.
        min_delta: Amount by which a better value has to be below the best one before.

    Attributes:
        metric: The metric.
        number: Number of the best epoch, from 0; None before the first.
        value: The lowest value; None before the first epoch.

    Raises:
        OptionError: The metric is unknown, or the amount is negative.
    """

    def __init__(self, owner: str, metric: WatchedMetric, min_delta: float = 0.0) -> None:
        if metric not in (known := get_args(WatchedMetric)):
            raise OptionError(
                f"{owner} is to watch {metric!r}; wanted one of {', '.join(known)}"
            )
        if not min_delta >= 0:
            raise OptionError(f"min_delta is {min_delta}; use a number of at least 0")
        self.metric = metric
        self.number: int | None = None
        self.value: float | None = None
        self._owner = owner
        self._min_delta = min_delta

    def start(self, trainer: "Trainer", state: dict[str, Any] | None) -> None:
        """Begin a ``fit``, or continue one.

        Args:
            trainer: The trainer.
            state: What ``state_dict`` returned; None for a new ``fit``.

        Raises:
            OptionError: The stages count their epochs for themselves, without evaluations, or
                the best epoch so far was that by another metric.
        """
        if not trainer.has_common_epochs:
            raise OptionError(
                f"{self._owner} compares epochs, and the stages run freely in processes of "
                "their own, where they are evaluated at the end only; leave it out, or "
                "train in one process"
            )
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
        value = self._read(result)
        limit = math.inf if self.value is None else self.value - self._min_delta
        if not value < limit:
            return False
        self.number, self.value = result.number, value
        return True

    def _read(self, result: EpochResult) -> float:
        if self.metric == "train_loss":
            return result.loss
        where = f"{self._owner} watches {self.metric}, and epoch {result.number}"
        if result.evaluation is None:
            raise OptionError(
                f"{where} was not evaluated; give fit validation data, or watch train_loss"
            )
        if self.metric == "test_loss":
            return result.evaluation.loss
        if result.evaluation.error is None:
            raise OptionError(
                f"{where} has no error, as targets are not class numbers; watch test_loss"
            )
        return result.evaluation.error

    def state_dict(self) -> dict[str, Any]:
        """Return the number and the value of the best epoch."""
        return {"metric": self.metric, "number": self.number, "value": self.value}
