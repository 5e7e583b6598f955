"""Callback that keeps the weights of the best epoch in a file."""

from pathlib import Path
from typing import Any

from hocket.callbacks.best_epoch import BestEpoch, Mode
from hocket.errors import CheckpointError, OptionError
from hocket.training.results.metrics import EpochResult
from hocket.training.view import TrainerView
from hocket.training.weights_file import save_weights


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
        self._file = Path(file)

    def on_start(self, trainer: TrainerView, state: dict[str, Any] | None) -> None:
        """Begin to compare, or continue.

        Raises:
            OptionError: There is no folder for the file, epochs do not end for all stages
                together, or another metric was watched before.
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
