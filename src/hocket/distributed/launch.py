"""Launch of the processes of one training on this machine, so that none is left behind.

The processes share a private folder and talk over the loopback interface only, so that nobody
on the network can reach them. They end on their own where they can; those that hang are killed.
"""

import math
import multiprocessing
import os
import pickle
import runpy
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hocket.distributed.identity import rendezvous_file
from hocket.distributed.network_interface import loopback_interface
from hocket.distributed.rejoin_files import RejoinMarkers
from hocket.distributed.restart import RestartBudget
from hocket.distributed.supervisor import RejoinPolicy, Supervisor
from hocket.distributed.worker_main import PEER_FAILED as PEER_FAILED
from hocket.distributed.worker_main import STOP_SIGNALS, WorkerSpec, worker_main
from hocket.errors import OptionError, format_problems

PRELOADED_IMPORTS = ("torch._dynamo",)
"""Modules that PyTorch imports only for the first optimizer, which takes seconds."""


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
    launch is that of the first process that failed on its own, 128 + n for a death by signal n;
    ``PEER_FAILED`` is the code of a process that ended because another one failed. If the
    folder of the launch is deleted, all processes are killed and the exit code is
    ``RENDEZVOUS_LOST``.

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
    _check_options(processes, threads, grace_s, timeout_s)
    cores = _usable_cores()
    if threads > 1 and threads * processes > cores:
        warnings.warn(
            f"{processes} processes of {threads} threads want {threads * processes} cores and "
            f"{cores} can be used, which makes them several times slower; leave threads at 0",
            stacklevel=2,
        )
    pickled = _pickle_work(work, arguments)
    interface = loopback_interface()
    # Threads that spin while they wait take the core that another process needs.
    environment = {"OMP_WAIT_POLICY": "passive"} | os.environ
    context = multiprocessing.get_context("forkserver")
    can_rejoin = rejoin_restarts is not None and rejoin_restarts.remaining > 0
    with _signal_pipe() as signal_pipe, TemporaryDirectory(prefix="hocket-") as folder:
        _start_fork_server(environment)

        def build_process(rank: int, incarnation: int) -> BaseProcess:
            spec = WorkerSpec(
                rank=rank,
                processes=processes,
                threads=threads or max(1, cores // processes),
                folder=folder,
                interface=interface,
                timeout_s=timeout_s,
                environment=environment,
                work=pickled,
                incarnation=incarnation,
                can_rejoin=can_rejoin,
            )
            return context.Process(target=worker_main, args=(spec,))

        rendezvous = rendezvous_file(folder)
        rendezvous.touch()
        rejoin = None
        if rejoin_restarts is not None:
            markers = RejoinMarkers(folder, processes)
            rejoin = RejoinPolicy(rejoin_restarts, build_process, markers)
        with Supervisor(grace_s, rendezvous, rejoin) as supervisor:
            for rank in range(processes):
                supervisor.start(build_process(rank, 0))
            return supervisor.wait(signal_pipe)


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


def _start_fork_server(environment: Mapping[str, str]) -> None:
    """Start the server that imports modules once and forks the processes, unless it runs."""
    loaded = [name for name in sys.modules if name.partition(".")[0] == "hocket"]
    # The scripts of a user are not imported here: they may change between launches.
    preload = [name for name in loaded if name != "hocket.__main__"]
    forkserver.set_forkserver_preload([*preload, *PRELOADED_IMPORTS])
    # Unblocks signals, so it must not be the server that starts it.
    resource_tracker.ensure_running()
    outside = dict(os.environ)
    # A signal to the whole process group must not end the server, and the processes with it,
    # before they ended in good order. A blocked signal stays blocked in the processes it forks.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        # OpenMP reads its settings when it is loaded. Without the path the server would not
        # find modules in additions to sys.path, and would silently skip them.
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        os.environ |= {**environment, "PYTHONPATH": path}
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(outside)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _check_options(processes: int, threads: int, grace_s: float, timeout_s: float) -> None:
    problems = []
    if processes < 1:
        problems.append(f"processes is {processes}; use at least 1")
    if threads < 0:
        problems.append(
            f"threads is {threads}; use 0 to divide the cores evenly, or at least 1"
        )
    if not 0 <= grace_s < math.inf:
        problems.append(f"grace_s is {grace_s}; use 0 or a number of seconds")
    if not 0 < timeout_s < math.inf:
        problems.append(f"timeout_s is {timeout_s}; use a number of seconds")
    if threading.current_thread() is not threading.main_thread():
        problems.append(
            f"launch was called in the thread {threading.current_thread().name!r}, which "
            "cannot handle Ctrl-C; call it in the main thread"
        )
    if problems:
        raise OptionError(format_problems("cannot start processes", problems))


def _pickle_work(work: Callable[..., int], arguments: Sequence[Any]) -> bytes:
    try:
        return pickle.dumps((work, arguments))
    except Exception as error:  # whatever the objects' own code raises
        raise OptionError(
            f"cannot send {work!r} and its arguments to other processes: {error}; give a "
            "function of a module, and arguments that pickle can write"
        ) from error


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
