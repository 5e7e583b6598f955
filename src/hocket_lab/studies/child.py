"""Process of one run of a study; it ends with a checkpoint if the sweep itself is killed."""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from hocket.distributed.launching.deferred_compiler import defer_compiler
from hocket.errors import HocketError, NonFiniteError, RunFolderError
from hocket.runs.config import RunConfig, parse_config
from hocket.runs.read_folder import METRICS_FILE, metric_rows
from hocket.runs.run_dir import lock_run_dir
from hocket.runs.start import train_in_process
from hocket.runs.summary import Summary
from hocket_lab.studies.rows import file_digests
from hocket_lab.studies.run_folder import RunResult, write_result

LOCK_TIMEOUT_S = 60.0
"""Seconds that the process of a killed sweep may take to leave its run folder."""
RETRY_S = 0.2


def main(words: Sequence[str]) -> int:
    """Train in the folder of a run, from its last checkpoint if there is any.

    Args:
        words: The configuration, and the digests of the files that it was named for, as JSON.

    Returns:
        The exit code.
    """
    config = parse_config(json.loads(words[0]), "the configuration of a run")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    assert config.run_dir is not None, "the pool names the folder of each run"
    _wait_for_lock(config.run_dir)
    if json.loads(words[1]) != file_digests(vars(config)):
        reason = (
            "the file of its plan or of its own code has changed since the sweep began; call "
            "the sweep again"
        )
        return report(config, RunFolderError(reason))
    defer_compiler()
    try:
        return train_in_process(config, True, report)
    except Exception as error:  # such as one of the user's network
        traceback.print_exc()
        write_result(config.run_dir, RunResult("failed", f"{type(error).__name__}: {error}"))
        return 1


def report(config: RunConfig, result: Summary | HocketError) -> int:
    """Write the result of a training into its folder, and return the exit code.

    A training that was stopped has none: it goes on later.
    """
    assert config.run_dir is not None, "the pool names the folder of each run"
    if isinstance(result, Summary):
        if result.state == "finished":
            write_result(config.run_dir, _finished(config.run_dir, len(result.epochs)))
            return 0
        return 128 + result.signal
    print(f"error: {result}", file=sys.stderr)
    diverged = isinstance(result, NonFiniteError)
    write_result(config.run_dir, RunResult("diverged" if diverged else "failed", str(result)))
    return 1


def _finished(run_dir: Path, epochs: int) -> RunResult:
    """Return the result of a training that has finished, which failed without its metrics.

    Args:
        run_dir: Its folder.
        epochs: Number of epochs that it has trained.
    """
    written = sum(1 for _ in metric_rows(run_dir / METRICS_FILE, "epoch"))
    if written >= epochs:
        return RunResult("finished")
    return RunResult(
        "failed",
        f"its metrics have {written} of {epochs} epochs, as the others could not be written; "
        "remove its folder to run it again",
    )


def _end_with_parent() -> None:
    """Wait for the end of standard input, which the sweep holds open, and end this process."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for_lock(run_dir: Path) -> None:
    """Wait until no process of an earlier sweep trains in the folder any more."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            with lock_run_dir(run_dir):
                return
        except RunFolderError:
            time.sleep(RETRY_S)
