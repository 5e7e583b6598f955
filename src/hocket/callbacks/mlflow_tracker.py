"""Metrics for MLflow."""

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from hocket.errors import OptionError, import_extra
from hocket.training.results.rows import axis, scalars

BATCH = 100
"""Numbers that are sent together; a request may have at most 1000 of them, and 100 choices."""


class MLflow:
    """Tracker of MLflow, which sends many numbers together and at the end of epochs.

    The processes of a training have a run each, with the same tag ``hocket.training``. The
    server or folder is ``MLFLOW_TRACKING_URI``, and the experiment ``MLFLOW_EXPERIMENT_NAME``,
    or ``hocket``.

    Args:
        name: Name of the training.
        process: Name of this process among several; None if it is alone or the main one.
        choices: Choices of the training, as plain values.

    Raises:
        OptionError: The package is not installed, or cannot start a run.
    """

    title = "MLflow"

    def __init__(
        self, name: str, process: str | None = None, choices: Mapping[str, Any] | None = None
    ) -> None:
        mlflow: Any = import_extra("mlflow", "mlflow", "the tracker 'mlflow'")
        self._entities = mlflow.entities
        self._unsent: list[Any] = []
        params = [mlflow.entities.Param(key, str(v)) for key, v in (choices or {}).items()]
        try:
            self._client = mlflow.MlflowClient()
            run = self._client.create_run(
                self._find_experiment(mlflow.exceptions.MlflowException),
                tags={"hocket.training": name},
                run_name=name if process is None else f"{name}.{process}",
            )
            self._run_id = run.info.run_id
            for start in range(0, len(params), BATCH):
                self._client.log_batch(self._run_id, params=params[start : start + BATCH])
        except mlflow.exceptions.MlflowException as error:
            raise OptionError(
                f"{self.title} cannot start a run: {error}; look at MLFLOW_TRACKING_URI"
            ) from error

    def _find_experiment(self, refusal: type[Exception]) -> str:
        """Return the identifier of the experiment, which is created if there is none."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "hocket")
        try:
            return str(self._client.create_experiment(name))
        except refusal:
            # There is one, perhaps by another process just now.
            if (found := self._client.get_experiment_by_name(name)) is None:
                raise
            return str(found.experiment_id)

    def log(self, kind: str, values: Mapping[str, Any]) -> None:
        """Keep the numbers of a row; send them once they are many, or an epoch has ended."""
        now_ms = int(time.time() * 1000)
        for name, number in scalars(kind, values):
            allowed = re.sub(r"[^\w\-. :/]", "_", name)  # a batch with another is refused
            place = axis(values)[1]
            self._unsent.append(self._entities.Metric(allowed, float(number), now_ms, place))
        if kind == "epoch" or len(self._unsent) >= BATCH:
            self._send()

    def close(self, *, failed: bool = False) -> None:
        """Send what is left, and end the run."""
        try:
            self._send()
        finally:
            self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._client.log_batch(self._run_id, metrics=unsent)
