"""Launches of a job, with the faults that happen outside of its processes."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from benchmarks.faults.fault import Fault
from benchmarks.faults.injector import CLOSE_OUTPUT
from benchmarks.faults.job import FaultyJob, launch_job
from benchmarks.faults.notes import take_due
from hocket.distributed.launching import supervisor
from hocket.distributed.launching.fork_server import ForkedProcess, ForkServer
from hocket.distributed.launching.launch import launch
from hocket.distributed.launching.worker_main import WorkerSpec

START_S = 2.0
"""Seconds in which processes must be connected, in a launch of which one never is."""
_END = b"end of the launch\n"


def run_launch(job: FaultyJob, folder: Path, attempt: int, pending: Sequence[Fault]) -> int:
    """Launch a job after ``attempt`` earlier launches; return the exit code."""
    arguments = (job, folder, attempt, job.time_limits(pending))
    if any(fault.kind == "suspend job of" for fault in pending):
        # The launcher is stopped as well, and this process is not to be.
        return launch(launch_job, *arguments, processes=1, threads=1)
    return launch_job(*arguments)


@contextlib.contextmanager
def stopped_at_start(
    folder: Path, faults: Sequence[Fault], pending: Sequence[Fault]
) -> Iterator[None]:
    """Context manager in which a process stops before it has met the others, if that is due."""
    if not any(fault.kind == "stop start of" for fault in pending):
        yield
        return
    original = ForkServer.fork

    def fork(server: ForkServer, spec: WorkerSpec) -> ForkedProcess:
        if take_due(folder, faults, spec.rank, 0, ["stop start of"], now=0):
            spec = replace(spec, environment=_StoppingEnvironment(spec.environment))
        return original(server, spec)

    with (
        patch.object(ForkServer, "fork", fork),
        patch.object(supervisor, "START_TIMEOUT_S", START_S),
    ):
        yield


class _StoppingEnvironment(dict[str, str]):
    """Environment that stops the process which takes it over: before it meets the others."""

    def __iter__(self) -> Iterator[str]:
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().__iter__()


@contextlib.contextmanager
def captured_output(file: Path) -> Iterator[Path]:
    """Context manager that sends the output of this process and its children into a file.

    It passes through a pipe, which is closed at once after a line `CLOSE_OUTPUT`.
    """
    reading, writing = os.pipe()
    reader = threading.Thread(target=_copy, args=(reading, file), daemon=True)
    reader.start()
    saved = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(writing, number)
    try:
        with (
            os.fdopen(writing, "w", buffering=1, closefd=False) as stream,
            contextlib.redirect_stdout(stream),
            contextlib.redirect_stderr(stream),
        ):
            yield file
    finally:
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        # The server that forks processes keeps the pipe open.
        with contextlib.suppress(BrokenPipeError):
            os.write(writing, _END)
        os.close(writing)
        reader.join()


def _copy(reading: int, file: Path) -> None:
    """Copy from a pipe to a file until a line asks for the end, and close the pipe."""
    with file.open("wb", buffering=0) as copied:
        seen = b""
        while more := os.read(reading, 65536):
            copied.write(more)
            seen += more
            if CLOSE_OUTPUT in seen or seen.endswith(_END):
                break
    os.close(reading)
