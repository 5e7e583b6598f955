"""Processes of a study's runs, several at a time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Self

from hocket.errors import RunFolderError, warn
from hocket.files import open_to_append
from hocket.runs.config import RunConfig
from hocket_lab.studies.rows import Run
from hocket_lab.studies.run_folder import (
    OUTPUT,
    RESULT,
    RunResult,
    last_line,
    read_result,
    write_result,
)

STOP_TIMEOUT_S = 60.0
"""Seconds that a run has to write its checkpoint when it must stop."""
POLL_S = 0.1
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from hocket_lab.studies.child import main; "
    "sys.exit(main(sys.argv[1:]))"
)


@dataclass(frozen=True)
class RunningRun:
    """A run and its process.

    Attributes:
        run: The run.
        folder: Its folder.
        process: The process that trains.
        output_start: Size of the log before, if there were earlier processes.
    """

    run: Run
    folder: Path
    process: "subprocess.Popen[bytes]"
    output_start: int


class Pool:
    """Context manager that runs the processes of runs, and leaves none behind.

    Each process has its own session, so that Ctrl-C reaches the sweep alone, and the sweep
    holds its standard input open, so that it ends when the sweep is killed.

    Args:
        folder: Folder of the run folders.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: list[RunningRun] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not KeyboardInterrupt:  # a second Ctrl-C does not wait
            self.stop()
        for each in self.running:
            _kill_group(each.process)

    def start(self, run: Run) -> None:
        """Start a run, or continue it from its last checkpoint.

        Raises:
            RunFolderError: Its folder cannot be written.
        """
        folder = self._folder / run.name
        config = replace(run.config, run_dir=folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / RESULT).unlink(missing_ok=True)
            log = open_to_append(folder / OUTPUT)
        except OSError as error:
            raise RunFolderError(
                f"cannot write the folder {str(folder)!r} of a run: {error.strerror or error}"
            ) from error
        with log as output:
            start = os.fstat(output.fileno()).st_size
            process = start_process(config, run.files, output)
        self.running.append(RunningRun(run, folder, process, start))

    def ended(self) -> Iterator[tuple[Run, RunResult | None]]:
        """Yield the runs that have ended since the last call, with their results.

        A run that was stopped has the result None.
        """
        for each in [*self.running]:
            if (code := each.process.poll()) is not None:
                self.running.remove(each)
                _kill_group(each.process)  # programs that the run has started
                if each.process.stdin is not None:
                    each.process.stdin.close()
                yield each.run, _result(each, code)

    def stop(self) -> None:
        """Stop all runs with a checkpoint, and kill those that hang."""
        for each in self.running:
            with suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGTERM)
                each.process.send_signal(signal.SIGCONT)  # it may be suspended
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for each in self.running:
            try:
                each.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                warn(f"run {each.run.name} has not stopped within {STOP_TIMEOUT_S:g} s: killed")
                _kill_group(each.process)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process of a run, if it has not ended, and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def start_process(
    config: RunConfig, files: Mapping[str, str], output: FileIO
) -> "subprocess.Popen[bytes]":
    """Start the process of a run.

    Args:
        config: Configuration of the run, with its folder.
        files: Digests of the files that it was named for.
        output: File for what it prints.
    """
    program = _PROGRAM.format(path=sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(config.as_dict()), json.dumps(dict(files))],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def _result(ended: RunningRun, code: int) -> RunResult | None:
    """Return the result of a run whose process has ended; None if it was stopped.

    One that left no result was killed, or failed with an error that is not Hocket's.

    Args:
        ended: The run.
        code: Exit code of its process.
    """
    folder = ended.folder
    stopped = code in (128 + signal.SIGTERM, -signal.SIGTERM)
    if (result := read_result(folder)) is not None or stopped:
        return result
    died = f"signal {-code}" if code < 0 else f"exit code {code}"
    said = last_line(folder / OUTPUT, ended.output_start)
    result = RunResult("failed", f"its process ended with {died}{said and f': {said}'}")
    with suppress(OSError):  # on a full disk it is tried again when the sweep is
        write_result(folder, result)
    return result
