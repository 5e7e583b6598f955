"""Restarts from the last checkpoint that skip a batch with NaN or infinity.

An exact restart would meet the same numbers again. So the batch is noted in the run folder, and
skipped from then on.
"""

from collections.abc import Callable
from pathlib import Path

from hocket.errors import NonFiniteError, RunFolderError
from hocket.files import read_json
from hocket.runs.config import RunConfig, write_json

EXIT_CODE = 79
"""Exit code of a process that has noted a batch to skip and asks to be restarted."""


class RestoreRequest(NonFiniteError):
    """Something became NaN or infinite, and the last checkpoint is to be restored."""

    exit_code = EXIT_CODE


def read_skipped_batches(run_dir: Path) -> list[int]:
    """Return the batches that are noted in a run folder.

    Raises:
        RunFolderError: The file is not a list of numbers.
    """
    file = run_dir / "skipped.json"
    if not file.exists():
        return []
    try:
        batches = read_json(file)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot read {str(file)!r}: {error}") from error
    if not isinstance(batches, list) or any(type(batch) is not int for batch in batches):
        raise RunFolderError(f"{str(file)!r} is not a list of the numbers of batches")
    return batches


def note_skipped_batch(run_dir: Path, error: NonFiniteError, limit: int) -> RestoreRequest:
    """Note the batch of an error in the run folder, and return the request to restart.

    Args:
        run_dir: The run folder, which has a checkpoint.
        error: The error, with its batch.
        limit: Most batches that may be noted.

    Raises:
        NonFiniteError: The error has no batch or one that was skipped already, or the limit is
            reached.
    """
    skipped, batch = read_skipped_batches(run_dir), error.batch
    if batch is None or batch in skipped:
        reason = "skipping a batch does not help"
    elif len(skipped) >= limit:
        reason = f"the run has been restored {limit} times already (--max-restores)"
    else:
        write_json(run_dir / "skipped.json", [*skipped, batch])
        return RestoreRequest(f"{error}; restoring the last checkpoint, to skip batch {batch}")
    raise NonFiniteError(f"{error}; {reason}") from error


def retry_skipping(config: RunConfig, start: Callable[[bool], int]) -> int:
    """Start a training, restart it while it asks to, and return the last exit code.

    Args:
        config: Choices of the training, which limit the restarts, as anybody may exit so.
        start: Starts the training and returns its exit code; its argument is True if the
            training is to continue from its checkpoints.
    """
    code = start(False)
    for _ in range(config.max_restores if config.on_nan == "restore" else 0):
        if code != EXIT_CODE:
            break
        code = start(True)
    return code
