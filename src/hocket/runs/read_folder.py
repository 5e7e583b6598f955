"""Contents of a run folder: choices, state and results of a run, ended or not."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, RunFolderError
from hocket.files import read_lines
from hocket.runs.config import RUN_RANGES, RunConfig, read_values
from hocket.runs.summary import SUMMARY, StageSummary, parse_stage_summary

METRICS_FILE = "metrics.jsonl"
"""File of a run folder with the metrics of its epochs."""
DAMAGED = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError,
    MemoryError,
)  # fmt: skip
"""Errors of plain values that have another form, depth or size than Hocket's."""


@dataclass(frozen=True, kw_only=True)
class RunContents:
    """Contents of a run folder.

    Attributes:
        folder: The run folder.
        config: Its choices.
        state: ``finished``, ``interrupted``, ``failed``, ``diverged`` or ``unfinished``.
        message: The reason, unless it finished.
        epochs: Rows of its epochs.
        stages: Results of its stages; nothing unless it has ended.
        cuts: First layers of stages 1, 2, ...
        processes: Number of processes that it was trained in; 0 if unknown.
        averaged_loss: Test loss of its averaged weights; None without such.
        averaged_error: Test error of its averaged weights, a fraction; None without such.
        environment: Versions, commit and machine.
    """

    folder: Path
    config: RunConfig
    state: str
    message: str
    epochs: Sequence[Mapping[str, Any]] = ()
    stages: Sequence[StageSummary] = ()
    cuts: Sequence[str] = ()
    processes: int = 0
    averaged_loss: float | None = None
    averaged_error: float | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)


def run_folders(path: Path) -> list[Path]:
    """Return the run folders at a path: a run folder, a folder of them, or a study."""
    if os.path.isfile(path / "run.json"):
        return [path]
    depths = ("*", "runs/*") if os.path.isdir(path) else ()  # or closed to this user
    return sorted(file.parent for depth in depths for file in path.glob(f"{depth}/run.json"))


def read_run_folder(folder: Path) -> RunContents:
    """Read a run from its folder, whether it has ended or not.

    Raises:
        RunFolderError: It is not the folder of a run, or a file in it is damaged.
    """
    if not os.path.isfile(folder / "run.json"):
        raise RunFolderError(
            f"{str(folder)!r} is no run folder, as it has no run.json; give folders that "
            "`hocket train` or `hocket sweep` has written"
        )
    with reading_run(folder):
        config = RunConfig.read(folder / "run.json")
        environment, summary = (
            read_values(file) if file.exists() else {}
            for file in (folder / "environment.json", folder / SUMMARY)
        )
        epochs = list(metric_rows(folder / METRICS_FILE, "epoch"))
        state, message, stages = _end(summary, len(epochs))
        averaged = summary.get("averaged") or {}
        return RunContents(
            folder=folder,
            config=config,
            state=state,
            message=message,
            epochs=epochs,
            stages=stages,
            cuts=tuple(map(str, summary.get("cuts", ()))),
            processes=int(environment.pop("processes", 0)),  # a setting, and no part of it
            averaged_loss=_number(averaged.get("loss")),
            averaged_error=_number(averaged.get("error")),
            environment=environment,
        )


@contextmanager
def reading_run(folder: Path) -> Iterator[None]:
    """Context manager in which any error means that a run folder is damaged.

    Raises:
        RunFolderError: An error was raised.
    """
    try:
        yield
    except (OSError, HocketError, *DAMAGED) as error:
        reason = f"{error}".replace("\n", " ")
        raise RunFolderError(
            f"cannot read the run in {str(folder)!r} ({reason or type(error).__name__}); move "
            "it away, or restore its files"
        ) from error


def metric_rows(file: Path, *kinds: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of some kinds of a file of metrics; none if there is no such file."""
    if not file.exists():
        return
    starts = tuple(f'{{"kind": "{kind}"'.encode() for kind in kinds)
    yield from (json.loads(line) for line in read_lines(file) if line.startswith(starts))


def require_stages(stages: int) -> None:
    """Refuse a number of stages that no run has.

    Raises:
        ValueError: A page of as many would not end.
    """
    if stages not in RUN_RANGES["stages"]:
        raise ValueError(f"it has {stages} stages, wanted {RUN_RANGES['stages']}")


def _number(value: Any) -> float | None:
    """Return a number that may be missing."""
    return None if value is None else float(value)


def _end(summary: Mapping[str, Any], epochs: int) -> tuple[str, str, tuple[StageSummary, ...]]:
    """Return state, reason and stages of a run from its summary, which may be an old one."""
    if not summary:
        return "unfinished", "it is under way, or was killed", ()
    require_stages(len(summary["stages"]))
    stages = tuple(parse_stage_summary(stage) for stage in summary["stages"])
    if epochs != (wanted := len(summary["epochs"])):
        reason = "it was resumed" if epochs > wanted else "some could not be written"
        message = f"its metrics have {epochs} epochs and its summary has {wanted}: {reason}"
        return "unfinished", message, ()
    return str(summary["state"]), str(summary["message"]), stages
