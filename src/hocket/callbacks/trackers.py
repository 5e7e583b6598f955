"""Services that keep the metrics of many trainings, and the callback that sends them there."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol

from hocket.engine.event import Event
from hocket.errors import OptionError, warn
from hocket.options.ranges import wrong_counts
from hocket.training.callback import Callback, TrainerView
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.results.rows import event_row


class Tracker(Protocol):
    """Service that gets the rows of metrics of one process; ``Tracking`` has an example.

    Attributes:
        title: Name of the service, for messages.
    """

    title: str

    def log(self, kind: str, values: Mapping[str, Any]) -> None:
        """Take the values of a row as in ``metrics.jsonl``, of a kind such as ``backward``."""

    def close(self, *, failed: bool = False) -> None:
        """Send what is left, and end the run, which may have failed by an error."""


class Trackers:
    """Trackers of a process; one that fails is left out from then on."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = list(trackers)

    def log(self, kind: str, values: Mapping[str, Any]) -> None:
        """Pass a row on to all trackers."""
        for tracker in list(self._trackers):
            try:
                tracker.log(kind, values)
            except Exception as error:
                self._trackers.remove(tracker)
                _warn(tracker, error)
                with suppress(Exception):
                    tracker.close(failed=True)

    def close(self, *, failed: bool = False) -> None:
        """Close all trackers."""
        for tracker in self._trackers:
            try:
                tracker.close(failed=failed)
            except Exception as error:
                _warn(tracker, error)


def _warn(tracker: Tracker, error: Exception) -> None:
    warn(
        f"{tracker.title} no longer accepts metrics ({type(error).__name__}: {error}); the "
        "training goes on without it",
    )


class Tracking(Callback):
    """Passes rows of metrics on to trackers, such as ``WandB`` or ``MLflow``.

    Each process passes on the rows of its stages, and the main one also the rows of epochs
    and evaluations. The trackers stay open after the ``fit``. Rows of ticks in which no batch
    enters, as at the end of a training, are in the metrics of ``hocket train`` only.

    Args:
        trackers: The trackers of this process.
        every: Interval of batches; each n-th has rows.

    Raises:
        OptionError: The interval is no whole number of at least 1.

    >>> import torch
    >>> from hocket import Trainer
    >>> class Printed:
    ...     title = "standard output"
    ...
    ...     def log(self, kind, values):
    ...         if kind == "epoch":
    ...             print("epoch", values["number"], values["samples"])
    ...
    ...     def close(self, *, failed=False): ...
    >>> network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    >>> trainer = Trainer(network, stages=2, optimizer=torch.optim.SGD)
    >>> batches = [(torch.ones(4, 8), torch.tensor([0, 1, 0, 1]))] * 4
    >>> tracking = Tracking(Printed())
    >>> _ = trainer.fit(batches, epochs=2, progress=False, callbacks=[tracking])
    epoch 0 16
    epoch 1 16
    """

    def __init__(self, *trackers: Tracker, every: int = 10) -> None:
        for problem in wrong_counts(1, every=every):
            raise OptionError(problem)
        self._trackers = Trackers(trackers)
        self._every = every

    def on_step(self, trainer: TrainerView, events: Sequence[Event]) -> None:
        """Pass on the rows of a tick."""
        for event in events:
            is_last = event.action.stage == trainer.stage_count - 1
            if (row := event_row(event, self._every, is_last=is_last)) is not None:
                self._trackers.log(*row)

    def on_epoch(self, trainer: TrainerView, result: EpochResult) -> None:
        """Pass on the row of an epoch."""
        if trainer.is_main_process:
            self._trackers.log("epoch", asdict(result))

    def on_evaluation(
        self, trainer: TrainerView, updates: int, result: EvaluationResult
    ) -> None:
        """Pass on the row of an evaluation within an epoch; see the base."""
        if trainer.is_main_process:
            place = {"tick": trainer.engine.tick_count, "updates": trainer.updates}
            self._trackers.log("evaluation", place | asdict(result))
