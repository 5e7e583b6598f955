"""Metrics for Weights & Biases."""

import os
from collections.abc import Mapping
from typing import Any

from hocket.errors import OptionError, import_extra
from hocket.training.results.rows import axis, scalars


class WandB:
    """Tracker of Weights & Biases, which sends from another process.

    The processes of a training have a run each, in one group. The project is
    ``WANDB_PROJECT``, or ``hocket``; with ``WANDB_MODE=offline`` nothing is sent.

    Args:
        name: Name of the training.
        process: Name of this process among several; None if it is alone or the main one.
        choices: Choices of the training, as plain values.

    Raises:
        OptionError: The package is not installed, or cannot start a run.
    """

    title = "Weights & Biases"

    def __init__(
        self, name: str, process: str | None = None, choices: Mapping[str, Any] | None = None
    ) -> None:
        wandb: Any = import_extra("wandb", "wandb", "the tracker 'wandb'")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "hocket"),
                group=name,
                name=name if process is None else f"{name}.{process}",
                config=dict(choices or {}),
                reinit="create_new",
            )
        except wandb.Error as error:
            raise OptionError(
                f"{self.title} cannot start a run: {error}; log in by 'wandb login', or set "
                "WANDB_MODE=offline"
            ) from error
        # Rows of late stages are of earlier batches, and W&B's own steps may only rise.
        for kind, step in _STEPS.items():
            self._run.define_metric(f"{kind}/*", step_metric=step)

    def log(self, kind: str, values: Mapping[str, Any]) -> None:
        """Log the numbers of a row over its batch, epoch or update."""
        if numbers := dict(scalars(kind, values)):
            name, place = axis(values)
            self._run.log({**numbers, name: place})

    def close(self, *, failed: bool = False) -> None:
        """Send what is left, and end the run."""
        self._run.finish(exit_code=int(failed))


_STEPS = {
    **dict.fromkeys(("backward", "update", "target", "comparison"), "batch"),
    "epoch": "epoch",
    "evaluation": "updates",
}
