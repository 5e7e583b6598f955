"""Metrics of a training, written as JSON Lines while it runs, and sent to trackers."""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from io import FileIO
from os.path import samestat
from pathlib import Path
from typing import Any

from hocket.callbacks.trackers import Trackers
from hocket.engine.event import Event
from hocket.engine.gradient_error import GradientError
from hocket.errors import RunFolderError, warn
from hocket.files import open_to_append, read_lines
from hocket.runs.config import plain_values
from hocket.runs.run_dir import cannot_write
from hocket.stage.stage import Stage
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.results.rows import axis, event_row, import_tensorboard, scalars

EVENTS = "events.out.tfevents."
"""Beginning of the names of files for TensorBoard."""


class MetricsLog:
    """Log with a row for each backward, update, comparison, skipped batch and evaluation.

    Backwards and updates are logged for every n-th batch only. If a row cannot be written, for
    example to a full disk, a warning says so, and no more rows follow.

    Args:
        folder: The run folder; rows are added to ``metrics.jsonl`` in it.
        every: Log every n-th batch.
        tensorboard: Write event files into the folder, too.
        trackers: Others that get the same rows, and are closed with the log.
        process: Name of this process among several, each of which writes its own file:
            ``metrics.stage1.jsonl``. Only one of them writes the rows of epochs.

    Raises:
        RunFolderError: The file cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        every: int,
        *,
        tensorboard: bool,
        trackers: Trackers | None = None,
        process: str | None = None,
    ) -> None:
        self._every = every
        self._trackers = Trackers() if trackers is None else trackers
        self._path = folder / (f"metrics.{process}.jsonl" if process else "metrics.jsonl")
        self._board: Any = None
        self._file: FileIO | None = None
        try:
            self._file = open_to_append(self._path)
            if tensorboard:
                writer = import_tensorboard().SummaryWriter
                self._board = writer(str(folder), filename_suffix=self._suffix)
        except OSError as error:
            raise RunFolderError(cannot_write(self._path, error)) from error

    def written(self) -> dict[str, int]:
        """Return the number of bytes so far of each file that no other process writes."""
        if self._board is not None:
            with self._giving_up():
                self._board.flush()
        return {
            file.name: file.stat().st_size
            for file in log_files(self._path.parent)
            if file == self._path or file.name.endswith(self._suffix)
        }

    @property
    def _suffix(self) -> str:
        """End of the names of this process's files for TensorBoard."""
        return f".{self._path.stem}"

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Context manager that ends the log with a warning if it cannot be written."""
        try:
            yield
        except OSError as error:
            file, self._file = self._file, None
            self._board = None
            if file is not None:
                with suppress(OSError):
                    file.close()
            warn(
                f"cannot write metrics to {str(self._path)!r}: {error.strerror or error}; the "
                "training goes on without them"
            )

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._trackers.close(failed=kind is not None)
        with self._giving_up():
            if self._board is not None:
                self._board.close()
            if self._file is not None:
                self._file.close()

    def log_event(self, event: Event, stage: Stage) -> None:
        """Log a backward or an update, and for any batch that it was skipped."""
        if (row := event_row(event, self._every, is_last=stage.is_last)) is not None:
            self._write_row(row[0], **row[1])

    def log_gradient_error(self, comparison: GradientError) -> None:
        """Log the error of a gradient compared with the exact one."""
        self._write_row("comparison", **asdict(comparison))

    def log_epoch(self, epoch: EpochResult) -> None:
        """Log an epoch, and warn if the file of metrics is no longer in its place."""
        with self._giving_up():
            is_there = self._file is None
            with suppress(FileNotFoundError):
                found = self._path.stat()
                is_there = not self._file or samestat(found, os.fstat(self._file.fileno()))
            if not is_there:
                warn(
                    f"{str(self._path)!r} was deleted, moved or replaced during the training; "
                    "what is written from now on is not together with what was there, and "
                    "--resume and hocket report need both: put the run folder back"
                )
        self._write_row("epoch", **asdict(epoch))

    def log_evaluation(self, tick: int, updates: int, result: EvaluationResult) -> None:
        """Log an evaluation within an epoch.

        Args:
            tick: Number of ticks done.
            updates: Number of updates that their batches lead to.
            result: Result of the evaluation.
        """
        self._write_row("evaluation", tick=tick, updates=updates, **asdict(result))

    def _write_row(self, kind: str, **values: Any) -> None:
        with self._giving_up():
            if self._file is not None:
                row = json.dumps(plain_values({"kind": kind, **values})) + "\n"
                _append_whole(self._file, row.encode())
            if self._board is not None:
                for name, value in scalars(kind, values):
                    self._board.add_scalar(name, value, axis(values)[1])
        self._trackers.log(kind, values)


def _append_whole(file: FileIO, row: bytes) -> None:
    """Append a row that is whole, or nothing.

    Raises:
        OSError: It cannot be written.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        written = 0
        while written < len(row):
            written += file.write(row[written:]) or 0
    except OSError:
        with suppress(OSError):
            os.truncate(file.fileno(), size)
        raise


def log_files(folder: Path) -> list[Path]:
    """Return the files of metrics in a run folder, of all processes and starts."""
    return [*folder.glob("metrics*.jsonl"), *folder.glob(f"{EVENTS}*")]


def cut_logs(folder: Path, sizes: Mapping[str, int]) -> None:
    """Cut files to sizes in bytes, by name, which `MetricsLog.written` gave at a checkpoint."""
    for file in log_files(folder):
        if (kept := sizes.get(file.name)) is not None:
            if (size := file.stat().st_size) < kept:
                warn(f"{str(file)!r} is shorter than at its checkpoint: rows are missing")
                # Half a row at the end would spoil the one that is added to it.
                kept = sum(map(len, read_lines(file))) if file.suffix == ".jsonl" else size
            os.truncate(file, kept)


def cut_unknown_logs(folder: Path, known: Collection[str], tick: int, epoch: int) -> None:
    """Cut files whose sizes the checkpoint does not hold, such as the files of another start.

    Event files for TensorBoard have no ticks: where it holds some, others began after it, and
    are removed.

    Args:
        folder: The run folder.
        known: Names of the files whose sizes are known.
        tick: Number of ticks done; rows of later ones are dropped.
        epoch: Number of epochs done; rows of later ones are dropped.
    """
    if any(name.startswith(EVENTS) for name in known):
        for file in folder.glob(f"{EVENTS}*"):
            if file.name not in known:
                file.unlink()
    for file in folder.glob("metrics*.jsonl"):
        if file.name not in known:
            kept = 0
            for line in read_lines(file):
                try:
                    row = json.loads(line)
                    if row.get("tick", -1) >= tick or row.get("number", -1) >= epoch:
                        break
                except (ValueError, TypeError, AttributeError, RecursionError):
                    break  # it is no row
                kept += len(line)
            os.truncate(file, kept)
