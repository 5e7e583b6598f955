"""Processes of a study's runs, several at a time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Self, TypeAlias

from hocket.errors import RunFolderError, warn
from hocket.files import open_to_append
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
Process: TypeAlias = "subprocess.Popen[bytes]"


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
    process: Process
    output_start: int


class Pool:
    """Context manager that runs the processes of runs, and leaves none behind.

    Each process has its own session, so that Ctrl-C reaches the sweep alone, and the sweep
    holds its standard input open, so that it ends when the sweep is killed.

    Args:
        folder: Folder of the run folders.
        shares: Let runs on a GPU share a process, in which they take turns.
    """

    def __init__(self, folder: Path, *, shares: bool = False) -> None:
        self._folder = folder
        self._shares = shares
        self._shared: dict[Hashable, Process] = {}
        self.running: list[RunningRun] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not KeyboardInterrupt:  # a second Ctrl-C does not wait
            self.stop()
        for process in {each.process for each in self.running} | {*self._shared.values()}:
            _kill_group(process)

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
            words = [json.dumps(config.as_dict()), json.dumps(dict(run.files))]
            process = self._process_for(run, words, output)
        self.running.append(RunningRun(run, folder, process, start))

    def _process_for(self, run: Run, words: Sequence[str], output: FileIO) -> Process:
        """Return a new process for a run, or the one that it shares with others."""
        kind = in_common(run) if self._shares else None
        if kind is None:
            return start_process(words, output)
        if kind not in self._shared or self._shared[kind].poll() is not None:
            self._shared[kind] = start_process((), output)
        stdin = self._shared[kind].stdin
        assert stdin is not None, "it is a pipe"
        with suppress(OSError):  # it has just died, as `ended` will find
            os.write(stdin.fileno(), json.dumps(words).encode() + b"\n")
        return self._shared[kind]

    def ended(self) -> Iterator[tuple[Run, RunResult | None]]:
        """Yield the runs that have ended since the last call, with their results.

        A run that was stopped has the result None.
        """
        for each in [*self.running]:
            if (code := each.process.poll()) is not None:
                self.running.remove(each)
                _kill_group(each.process)  # programs that the run has started
                yield each.run, _result(each, code)
            elif each.process in self._shared.values() and (found := read_result(each.folder)):
                self.running.remove(each)
                yield each.run, found

    def stop(self) -> None:
        """Stop all runs with a checkpoint, and kill those that hang."""
        for process in {each.process for each in self.running}:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)  # it may be suspended
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for each in self.running:
            try:
                each.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                warn(f"run {each.run.name} has not stopped within {STOP_TIMEOUT_S:g} s: killed")
                _kill_group(each.process)


def _kill_group(process: Process) -> None:
    """Kill the process of a run, if it has not ended, and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def in_common(run: Run) -> Hashable:
    """Return what runs that share a process have in common; None for one that shares none.

    Without CUDA graphs the host has too much to do in a turn. Workers would use another stream,
    and services for metrics have one run in a process.
    """
    config = run.config
    on_gpu = config.cuda_graphs and config.device.startswith("cuda")
    if not on_gpu or config.workers or config.log_to != "none":
        return None
    return config.device, config.threads, *sorted(run.files.items())


def start_process(words: Sequence[str], output: FileIO) -> Process:
    """Start the process of a run, with its words for `child.main`, or of several without."""
    program = _PROGRAM.format(path=[*map(os.fsdecode, sys.path)])  # Paths, too
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def _result(ended: RunningRun, code: int) -> RunResult | None:
    """Return the result of a run whose process has ended; None if it was stopped.

    One that left no result was killed, or failed with an error that is not Hocket's.
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
