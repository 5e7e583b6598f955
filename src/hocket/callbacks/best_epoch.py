"""Callbacks that compare epochs: the weights of the best one, and an early stop."""

import math
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hocket.errors import CheckpointError, OptionError, Problems
from hocket.options.hints import matches_hint
from hocket.options.ranges import wrong_choice, wrong_counts
from hocket.training.callback import Callback, TrainerView
from hocket.training.results.metrics import EpochResult, read_metric
from hocket.training.weights_file import save_weights

Mode: TypeAlias = Literal["min", "max"]
"""Values of a metric that are better: low ones or high ones."""


class BestEpoch(Callback):
    """Callback that knows the best epoch so far: the first with the best value of a metric.

    `EarlyStopping` describes its options.
    """

    def __init__(self, metric: str, min_delta: float = 0.0, mode: Mode = "min") -> None:
        Problems(wrong_choice("mode", mode, ("min", "max"))).raise_together("")
        if not matches_hint(min_delta, float) or min_delta < 0:
            raise OptionError(f"min_delta is {min_delta!r}; use a number of at least 0")
        self.best_epoch: int | None = None
        self._metric = metric
        self._min_delta = min_delta
        self._mode = mode
        self._value: float | None = None

    def on_start(self, trainer: TrainerView, state: dict[str, Any] | None) -> None:
        """Begin to compare epochs, or continue.

        Raises:
            OptionError: Epochs do not end for all stages together, or another metric or mode
                was watched before.
        """
        # Refuse stages whose epochs cannot be compared.
        name = type(self).__name__
        if not trainer.has_common_epochs:
            raise OptionError(
                f"{name} compares epochs, and the stages run freely in processes of "
                "their own, where they are evaluated at the end only; leave it out, or "
                "train in one process"
            )
        # Begin, or continue with the same metric and mode.
        if state is None:
            self.best_epoch = self._value = None
            return
        if (state["metric"], state["mode"]) != (self._metric, self._mode):
            raise OptionError(
                f"{name} is to watch {self._metric} (mode {self._mode!r}), and watched "
                f"{state['metric']} (mode {state['mode']!r}) before this training was resumed; "
                "watch that"
            )
        self.best_epoch, self._value = state["number"], state["value"]

    def _improves(self, result: EpochResult) -> bool:
        """Return True if an epoch is better than all before, and remember it then."""
        value = read_metric(result, self._metric, type(self).__name__)
        sign = 1 if self._mode == "min" else -1
        limit = math.inf if self._value is None else sign * self._value - self._min_delta
        if not sign * value < limit:
            return False
        self.best_epoch, self._value = result.number, value
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the number and the value of the best epoch."""
        return {
            "metric": self._metric,
            "mode": self._mode,
            "number": self.best_epoch,
            "value": self._value,
        }


class BestWeights(BestEpoch):
    """Writes the weights of all stages to a file, after each epoch that is the best so far.

    They are under the network's own names, and are read with ``torch.load``. The main process
    writes the file atomically: it always holds the weights of one epoch.

    Args:
        file: The file, which a new ``fit`` overwrites.
        metric: ``test_error``, ``test_loss``, ``train_loss``, or the name of a metric of the
            trainer.
        mode: ``min`` if low values are better, or ``max``.

    Attributes:
        best_epoch: Number of the epoch whose weights the file holds, from 0; None before the
            first.

    Raises:
        OptionError: The mode is unknown.

    >>> BestWeights("best.pt", "test_loss").best_epoch  # None before the first epoch
    """

    def __init__(
        self, file: Path | str, metric: str = "test_error", *, mode: Mode = "min"
    ) -> None:
        super().__init__(metric, mode=mode)
        self._file = Path(file).absolute()  # also after a change of the working directory

    def on_start(self, trainer: TrainerView, state: dict[str, Any] | None) -> None:
        """Begin to compare, or continue.

        Raises:
            OptionError: There is no folder for the file, epochs do not end for all stages
                together, or another metric or mode was watched before.
        """
        if trainer.is_main_process and not self._file.parent.is_dir():
            raise OptionError(
                f"BestWeights is to write {str(self._file)!r}, and there is no folder "
                f"{str(self._file.parent)!r}; create it, or name another file"
            )
        super().on_start(trainer, state)

    def on_epoch(self, trainer: TrainerView, result: EpochResult) -> None:
        """Write the weights if the epoch is the best so far.

        Raises:
            CheckpointError: The file cannot be written.
            OptionError: The epoch was not evaluated as the metric needs it.
        """
        if not self._improves(result):
            return
        trainer.collect()
        if trainer.is_main_process:
            try:
                save_weights(trainer.network, self._file)
            except OSError as error:
                raise CheckpointError(
                    f"epoch {result.number} is the best so far, and {str(self._file)!r} cannot "
                    f"be written: {error.strerror or error}; make room, or name another file"
                ) from error


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

    >>> import torch
    >>> from hocket import Trainer
    >>> network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    >>> trainer = Trainer(network, stages=2, optimizer=lambda w: torch.optim.SGD(w, lr=1e-9))
    >>> batches = [(torch.ones(4, 8), torch.tensor([0, 1, 0, 1]))] * 4
    >>> stopping = EarlyStopping("test_error", patience=2)  # the error stays the same
    >>> options = {"epochs": 9, "progress": False, "callbacks": [stopping]}
    >>> len(trainer.fit(batches, batches, **options)), stopping.exhausted
    (3, True)
    """

    def __init__(
        self,
        metric: str = "test_error",
        *,
        patience: int = 3,
        min_delta: float = 0.0,
        mode: Mode = "min",
    ) -> None:
        for problem in wrong_counts(1, patience=patience):
            raise OptionError(problem)
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
            OptionError: Epochs do not end for all stages together, or another metric or mode
                was watched before.
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
