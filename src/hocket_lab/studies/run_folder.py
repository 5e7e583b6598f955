"""Folder of one run of a study: the result of the run, and how far it is."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from hocket.errors import OptionError, RunFolderError, format_problems
from hocket.files import open_regular_file, read_json
from hocket.runs.config import RunConfig, write_json
from hocket.runs.read_folder import METRICS_FILE
from hocket_lab.studies.rows import Run, choices

RESULT = "result.json"
OUTPUT = "output.log"
TAIL = 4096
"""Bytes at the end of a log that are read to see how far a run is."""
State: TypeAlias = Literal["finished", "diverged", "failed"]


@dataclass(frozen=True)
class RunResult:
    """End of a run.

    Attributes:
        state: ``finished``; ``diverged`` if something became NaN or infinite, which is a result
            as well; or ``failed`` for another reason, after which it is tried again.
        message: The reason, unless it finished; then results that could not be written.
    """

    state: State
    message: str = ""


def write_result(folder: Path, result: RunResult) -> None:
    """Write the result of a run into its folder."""
    write_json(folder / RESULT, asdict(result))


def read_result(folder: Path) -> RunResult | None:
    """Return the result of a run; None if it has not ended.

    Raises:
        RunFolderError: The file is none that a run has written.
    """
    file = folder / RESULT
    if not file.exists():
        return None
    try:
        result = RunResult(**read_json(file))
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"cannot read {str(file)!r}: {error}; delete it") from error
    if result.state not in get_args(State):
        raise RunFolderError(f"{str(file)!r} has the state {result.state!r}; delete it")
    return result


def check_is_run(folder: Path, run: Run) -> None:
    """Check that a folder, if it exists, is the folder of a run.

    Raises:
        RunFolderError: It holds a run of another configuration.
    """
    file = folder / "run.json"
    if not file.exists():
        return
    try:
        found = choices(RunConfig.read(file))
    except OptionError as error:
        raise RunFolderError(f"{error}; move {str(folder)!r} away") from error
    wanted = choices(run.config)
    if found != wanted:
        problems = [
            f"{name} is {found.get(name, 'the default')!r}; the study has "
            f"{wanted.get(name, 'the default')!r}"
            for name in sorted(found.keys() | wanted.keys())
            if found.get(name) != wanted.get(name)
        ]
        title = f"{str(folder)!r} is the folder of another run; move it away"
        raise RunFolderError(format_problems(title, problems))


def last_line(file: Path, start: int) -> str:
    """Return the last line that is not empty, from a byte on; nothing if there is none."""
    lines = [line for line in _read_tail(file, start).splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def newest_batch(folder: Path) -> tuple[int, float | None] | None:
    """Return the number of the newest batch in the metrics of a run, and its loss, if any."""
    batch, loss = None, None
    for line in reversed(_read_tail(folder / METRICS_FILE).splitlines()[1:]):
        try:
            row = json.loads(line)
        except ValueError:  # it is being written
            continue
        if batch is None and "batch" in row:
            batch = int(row["batch"])
        loss = row.get("loss") if loss is None and row.get("kind") == "backward" else loss
        if batch is not None and loss is not None:
            break
    return None if batch is None else (batch, loss)


def _read_tail(file: Path, start: int = 0) -> str:
    """Return the end of a file, from a byte on; nothing if it does not exist."""
    try:
        with open_regular_file(file) as opened:
            opened.seek(max(start, os.fstat(opened.fileno()).st_size - TAIL))
            return opened.read().decode(errors="replace")
    except OSError:
        return ""
