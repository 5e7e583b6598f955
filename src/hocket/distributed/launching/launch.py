"""Launch of the processes of one training on this machine, so that none is left behind.

The processes share a private folder and talk over the loopback interface only, so that the
network cannot reach them. They end on their own where they can; those that hang are killed.
"""

import math
import os
import pickle
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hocket.distributed.folder.launch_folder import LaunchFolder, Note
from hocket.distributed.folder.restart import STOP_SIGNALS, RestartBudget
from hocket.distributed.launching.fork_server import ForkedProcess, ForkServer
from hocket.distributed.launching.supervisor import Supervisor, print_message
from hocket.distributed.launching.worker_main import WorkerSpec
from hocket.distributed.network.network_interface import loopback_interface
from hocket.errors import OptionError, PeerLostError, raise_problems, warn
from hocket.options.ranges import wrong_counts

FILES, FILES_PER_PROCESS = 40, 8
"""Files and connections of a process of a launch: its own, and those for each process."""
CHECKPOINT_GRACE_S = 30.0
"""Seconds that processes have to end where they may write a last checkpoint."""
_servers: list[ForkServer] = []
"""The fork server of this process, which serves one launch after another."""


def launch(
    work: Callable[..., int],
    *arguments: Any,
    processes: int,
    threads: int = 0,
    grace_s: float = 5.0,
    timeout_s: float = 1800.0,
    rejoin_restarts: RestartBudget | None = None,
) -> int:
    """Run ``work(*arguments)`` in several processes of this machine; return the exit code.

    In each process torch.distributed is initialized with gloo, and RANK, WORLD_SIZE,
    LOCAL_RANK and LOCAL_WORLD_SIZE are set. The exit code of a process is the result of
    ``work``; after an exception it is the ``exit_code`` of its type, or 1. The exit code of the
    launch comes from the first process that failed by itself, 128 + n for a death by signal n;
    74 (`PeerFailedError`) is the code of a process that ended because another one failed. If
    the folder of the launch is deleted, all processes are killed and the exit code is 72
    (``RENDEZVOUS_LOST``).

    Ctrl-C is sent to process 0, which may end the work for all; the second one kills all.
    SIGTERM and SIGHUP are sent to all as SIGTERM, and give the exit codes 143 and 129.

    Args:
        work: A function of a module; it is imported in each process.
        arguments: Its arguments; they are pickled.
        processes: Number of processes.
        threads: Number of PyTorch's threads in each process; 0 divides the cores evenly.
        grace_s: Seconds that the others may take to end after one process has failed.
        timeout_s: Seconds that an operation of the default group waits for a process.
        rejoin_restarts: Restarts for replacing a killed process alone, while all processes are
            detached; for work whose processes then need no process group. None replaces none.

    Raises:
        OptionError: The processes cannot be started; all reasons are listed.
    """
    # Check what the processes need.
    _check_options(processes, threads, grace_s, timeout_s)
    pickled = _pickle_work(work, arguments)
    interface = loopback_interface()
    # Threads that spin while they wait take the core that another process needs.
    environment = {"OMP_WAIT_POLICY": "passive"} | os.environ

    # Start a server that forks the processes, and supervise them to their end.
    try:
        with _signal_pipe() as signal_pipe:
            server = _running_server(environment)
            if number := server.wait_until_ready(signal_pipe):
                return 128 + number
            with _launch_folder() as folder:
                spec = WorkerSpec(
                    rank=0,
                    processes=processes,
                    threads=threads or max(1, usable_cores() // processes),
                    folder=str(folder.path),
                    interface=interface,
                    timeout_s=timeout_s,
                    environment=environment,
                    directory=os.getcwd(),
                    module_path=sys.path,
                    arguments=sys.argv,
                    work=pickled,
                )

                def start_process(rank: int, incarnation: int) -> ForkedProcess:
                    return server.fork(replace(spec, rank=rank, incarnation=incarnation))

                if rejoin_restarts is None or not rejoin_restarts.remaining:
                    folder.write(Note.UNRECOVERABLE)
                with Supervisor(grace_s, folder, start_process, rejoin_restarts) as supervisor:
                    for rank in range(processes):
                        supervisor.add(start_process(rank, 0))
                    return supervisor.wait(signal_pipe)
    except PeerLostError as error:
        print_message(str(error))
        return error.exit_code


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Run a Python script as ``python script arguments...`` would; return 0 at its end."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    return 0


@contextmanager
def _signal_pipe() -> Iterator[int]:
    """Context manager that yields a pipe with the numbers of the signals that arrive."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # A signal that the caller ignores stays ignored, such as SIGHUP under nohup.
    numbers = [n for n in STOP_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        os.close(reading)
        os.close(writing)


def _running_server(environment: Mapping[str, str]) -> ForkServer:
    """Return the fork server of this process; start one unless it runs."""
    if not (_servers and _servers[0].runs):
        loaded = [name for name in sys.modules if name.partition(".")[0] == "hocket"]
        # The scripts of a user are not imported there: they may change between launches.
        modules = [name for name in loaded if name != "hocket.__main__"]
        _servers[:] = [ForkServer(environment, modules)]
    return _servers[0]


@contextmanager
def _launch_folder() -> Iterator[LaunchFolder]:
    """Context manager that yields a new private folder through which processes communicate.

    Raises:
        OptionError: Nothing can be written where temporary files belong.
    """  # noqa: DOC501  # _cannot_write returns an OptionError
    try:
        temporary = TemporaryDirectory(prefix="hocket-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _cannot_write(error) from error
    with temporary as path:
        folder = LaunchFolder(path)
        if (problem := folder.find_problem()) is not None:
            raise _cannot_write(problem)
        folder.rendezvous.touch()
        yield folder


def _cannot_write(problem: OSError) -> OptionError:
    return OptionError(
        f"processes communicate through a folder for temporary files, and cannot: {problem}; "
        "make room there, or set TMPDIR to a folder in which you can write"
    )


def _check_options(processes: int, threads: int, grace_s: float, timeout_s: float) -> None:
    if not hasattr(os, "fork"):
        raise OptionError(
            f"this system ({sys.platform}) forks no processes; use `torchrun`, or one process"
        )
    # Numbers.
    problems = wrong_counts(1, processes=processes) + wrong_counts(0, threads=threads)
    if not 0 <= grace_s < math.inf:
        problems.append(f"grace_s is {grace_s}; use 0 or a number of seconds")
    if not 0 < timeout_s < math.inf:
        problems.append(f"timeout_s is {timeout_s}; use a number of seconds")

    # What the system allows, and the thread.
    import resource  # not on Windows

    needed_files = FILES + FILES_PER_PROCESS * processes
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < needed_files:
        problems.append(
            f"a process may have {files} files and connections open, and needs {needed_files}; "
            "raise the limit with `ulimit -n`"
        )
    if threading.current_thread() is not threading.main_thread():
        problems.append(
            f"launch was called in the thread {threading.current_thread().name!r}, which "
            "cannot handle Ctrl-C; call it in the main thread"
        )
    raise_problems(OptionError, "cannot start processes", problems)

    # What works, but is slow.
    cores = usable_cores()
    if threads > 1 and threads * processes > cores:
        warn(
            f"{processes} processes of {threads} threads want {threads * processes} cores and "
            f"{cores} can be used, which makes them several times slower; leave threads at 0",
        )


def _pickle_work(work: Callable[..., int], arguments: Sequence[Any]) -> bytes:
    try:
        if getattr(work, "__module__", None) == "__main__":
            raise ValueError(
                "the program or notebook that runs is no module that they could import"
            )
        return pickle.dumps((work, arguments))
    except Exception as error:  # the objects' own code may raise anything
        raise OptionError(
            f"cannot send {work!r} and its arguments to other processes: {error}; give a "
            "function of a module (a cell that begins with %%writefile mine.py makes one), and "
            "arguments that pickle can write"
        ) from error


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
