"""Metrics of a training, written while it runs as JSON Lines and for TensorBoard."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from hocket.engine.event import Event
from hocket.engine.gradient_error import GradientError
from hocket.errors import missing_extra
from hocket.runs.config import plain_values
from hocket.stage.stage import Stage
from hocket.training.metrics import EpochResult


class MetricsLog:
    """Log with a row for each backward, update, comparison, skipped batch and epoch.

    Backwards and updates are logged for every n-th batch only.

    Args:
        folder: The run folder; rows go to ``metrics.jsonl`` in it.
        every: Log every n-th batch.
        tensorboard: Write event files into the folder, too.
        process: Name of this process among several, each of which writes a file of its own:
            ``metrics.stage1.jsonl``. Only one of them writes the rows of epochs.
        after: Sizes of the files from ``written`` to continue from; later rows are dropped,
            also from the files of TensorBoard.
    """

    def __init__(
        self,
        folder: Path,
        every: int,
        *,
        tensorboard: bool,
        process: str | None = None,
        after: dict[str, int] | None = None,
    ) -> None:
        self._every = every
        self._path = folder / (f"metrics.{process}.jsonl" if process else "metrics.jsonl")
        self._path.touch()
        for file in self._files():
            kept = (after or {}).get(file.name, 0)
            if not kept and file != self._path:
                file.unlink()
                continue
            # At most to its present size: beyond that it would be filled with zeros.
            os.truncate(file, min(kept, file.stat().st_size))
        self._board: Any = None
        if tensorboard:
            self._board = tensorboard_writer()(str(folder), filename_suffix=self._suffix)
        # Buffered by lines: complete rows stay if the process dies.
        self._file = self._path.open("a", buffering=1)

    def written(self) -> dict[str, int]:
        """Return the number of bytes of each file so far."""
        if self._board is not None:
            self._board.flush()
        return {file.name: file.stat().st_size for file in self._files()}

    def _files(self) -> list[Path]:
        """Return the files of this process, with one for TensorBoard from each start."""
        return [self._path, *self._path.parent.glob(f"events.out.tfevents.*{self._suffix}")]

    @property
    def _suffix(self) -> str:
        return f".{self._path.stem}"

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def log_event(self, event: Event, stage: Stage) -> None:
        """Log a backward or an update, and for any batch that it was skipped."""
        action, report = event.action, event.report
        place = {"tick": event.tick, "stage": action.stage, "batch": action.batch}
        if report.fault is not None:
            self._write_row("skipped", **place, epoch=report.epoch, fault=report.fault)
        elif action.kind in "BUT" and action.batch % self._every == 0 and not report.skipped:
            values = {k: v for k, v in asdict(report).items() if v is not None}
            del values["skipped"]
            kind = {"B": "backward", "U": "update", "T": "target"}[action.kind]
            self._write_row(kind, **place, **values)

    def log_gradient_error(self, comparison: GradientError) -> None:
        """Log the error of a gradient compared with the exact one."""
        self._write_row("comparison", **asdict(comparison))

    def log_epoch(self, epoch: EpochResult) -> None:
        """Log an epoch."""
        self._write_row("epoch", **asdict(epoch))

    def _write_row(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps(plain_values({"kind": kind, **values})) + "\n")
        if self._board is None:
            return
        step = values.get("batch", values.get("number", 0))
        stage = f"/stage{values['stage']}" if "stage" in values else ""
        for name, value in values.items():
            if name in ("loss", "gradient_norm", "staleness", "lr", "cosine", "ratio") and (
                isinstance(value, int | float)
            ):
                self._board.add_scalar(f"{kind}/{name}{stage}", value, step)
        if (
            kind == "epoch"
            and values["evaluation"]
            and values["evaluation"]["error"] is not None
        ):
            self._board.add_scalar("epoch/test_error", values["evaluation"]["error"], step)
            for k, error in enumerate(values["evaluation"]["exits"]):
                self._board.add_scalar(f"epoch/exit_error/stage{k}", error, step)
            if values["evaluation"]["ensemble"] is not None:
                self._board.add_scalar(
                    "epoch/ensemble_error", values["evaluation"]["ensemble"], step
                )


def tensorboard_writer() -> Any:
    """Return the class that writes event files for TensorBoard.

    Raises:
        OptionError: The package is not installed.
    """  # noqa: DOC501  # missing_extra returns an OptionError
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_extra("tensorboard", "tensorboard", "the option tensorboard") from error
    return SummaryWriter
