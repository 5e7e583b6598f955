"""Callback that sends the metrics of a training to trackers."""

from collections.abc import Sequence
from dataclasses import asdict

from hocket.callbacks.trackers import Tracker, Trackers
from hocket.engine.event import Event
from hocket.errors import OptionError
from hocket.training.callback import Callback, TrainerView
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.results.rows import event_row


class Tracking(Callback):
    """Passes rows of metrics on to trackers, such as ``WandB`` or ``MLflow``.

    Each process passes on the rows of its stages, and the main one also the rows of epochs
    and evaluations. The trackers stay open after the ``fit``.

    Args:
        trackers: The trackers of this process.
        every: Interval of batches; each n-th has rows.

    Raises:
        OptionError: The interval is below 1.
    """

    def __init__(self, *trackers: Tracker, every: int = 10) -> None:
        if every < 1:
            raise OptionError(f"every is {every}; use a number of batches of at least 1")
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
        """Pass on the row of an evaluation within an epoch.

        See the protocol.
        """
        if trainer.is_main_process:
            place = {"tick": trainer.engine.tick_count, "updates": updates}
            self._trackers.log("evaluation", place | asdict(result))
