"""A run that goes back to its last checkpoint where something became NaN or infinite.

Going back exactly would meet the same numbers again. So the batch at which it happened is noted
in the run folder, and skipped from then on.
"""

import json
from collections.abc import Callable
from pathlib import Path

from hocket.errors import NonFiniteError
from hocket.runs.config import write_json

EXIT_CODE = 79
"""Of a process that has noted a batch to skip, for the run to be started again."""


class RestoreRequest(NonFiniteError):
    """Something became NaN or infinite, and the run is to go back to its last checkpoint."""

    exit_code = EXIT_CODE


def read_skipped_batches(folder: Path) -> list[int]:
    """The batches that were noted in a run folder."""
    file = folder / "skipped.json"
    return list(json.loads(file.read_text())) if file.exists() else []


def note_skipped_batch(folder: Path, error: NonFiniteError, most: int) -> RestoreRequest:
    """Note the batch of an error, and give what asks for another start.

    Args:
        folder: The run folder, which has a checkpoint.
        error: What happened.
        most: How many batches may be noted.

    Raises:
        NonFiniteError: It happened at no batch, or at one that had been skipped, or there are
            too many.
    """
    known, batch = read_skipped_batches(folder), error.batch
    if batch is None or batch in known:
        why = "skipping a batch does not mend it"
    elif len(known) >= most:
        why = f"the run has gone back {most} times already (--max-restores)"
    else:
        write_json(folder / "skipped.json", [*known, batch])
        return RestoreRequest(f"{error}; going back to the last checkpoint, to skip batch {batch}")
    raise NonFiniteError(f"{error}; {why}") from error


def retry_skipping(start: Callable[[bool], int]) -> int:
    """Start, and start again for as long as batches to skip are found; the last exit code.

    Args:
        start: Starts, or goes on from what is there, and gives the exit code.
    """
    code = start(False)
    while code == EXIT_CODE:
        code = start(True)
    return code
