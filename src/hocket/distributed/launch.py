"""Several processes of this machine as one world: started, watched, and none left behind.

They meet in a private folder and talk over the loopback interface only, so that nobody on the
network can reach them. Workers end on their own where they can; what hangs is killed.
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

from hocket.distributed.identity import store_file
from hocket.distributed.network_interface import loopback
from hocket.distributed.rejoin_files import RejoinMarkers
from hocket.distributed.restart import Restarts
from hocket.distributed.supervisor import RejoinPolicy, Supervisor
from hocket.distributed.worker_main import HELD_BACK, WorkerSpec, worker_main
from hocket.distributed.worker_main import PEER_FAILED as PEER_FAILED
from hocket.errors import OptionError, listed

LATE = ("torch._dynamo",)
"""What PyTorch imports only when the first optimizer is made, which takes seconds."""


def launch(
    work: Callable[..., int],
    *arguments: Any,
    processes: int,
    threads: int = 0,
    grace_s: float = 5.0,
    timeout_s: float = 1800.0,
    alone: Restarts | None = None,
) -> int:
    """Run ``work(*arguments)`` in so many processes of this machine; gives the exit code.

    In each of them torch.distributed is initialised with gloo, and RANK, WORLD_SIZE,
    LOCAL_RANK and LOCAL_WORLD_SIZE are set. What ``work`` returns is the exit code of its
    process, an exception gives 1, or what its type has as ``exit_code``. The code of the
    first process that failed on its own is the result, 128 + n for a death by signal n;
    one that ends with ``WITNESS`` only saw another fail. If the folder in which they meet is
    taken away, all are killed, and the result is ``UNMEETABLE``.

    Ctrl-C goes to process 0, which may end the work for all; the second one kills. SIGTERM
    and SIGHUP go to all as SIGTERM, and give 143 and 129.

    Args:
        work: A function of a module; it is imported in each process.
        arguments: What it is called with; pickled.
        processes: How many.
        threads: Of PyTorch in each process; 0 shares the cores out.
        grace_s: How long the others may take to end after one has failed.
        timeout_s: How long an operation of the default group waits for a process.
        alone: How often one that is killed is started again, alone, while all are out on their
            own; for work whose processes need no process group then. Never if not given.

    Raises:
        OptionError: Such processes cannot be started; all reasons are named.
    """
    _require(processes, threads, grace_s, timeout_s)
    cores = _usable_cores()
    if threads > 1 and threads * processes > cores:
        warnings.warn(
            f"{processes} processes of {threads} threads want {threads * processes} cores and "
            f"{cores} can be used, which makes them several times slower; leave threads at 0",
            stacklevel=2,
        )
    pickled = _pickled(work, arguments)
    interface = loopback()
    # Threads that spin while they wait take the core that another process needs.
    environment = {"OMP_WAIT_POLICY": "passive"} | os.environ
    context = multiprocessing.get_context("forkserver")
    returns = alone is not None and alone.left > 0
    with _bell() as bell, TemporaryDirectory(prefix="hocket-") as folder:
        _start_server(environment)

        def process(rank: int, life: int) -> BaseProcess:
            start = WorkerSpec(
                rank=rank,
                processes=processes,
                threads=threads or max(1, cores // processes),
                folder=folder,
                interface=interface,
                timeout_s=timeout_s,
                environment=environment,
                work=pickled,
                incarnation=life,
                returns=returns,
            )
            return context.Process(target=worker_main, args=(start,))

        meeting = store_file(folder)
        meeting.touch()
        whereabouts = RejoinMarkers(folder, processes)
        back = RejoinPolicy(alone, process, whereabouts) if alone is not None else None
        with Supervisor(grace_s, meeting, back) as workers:
            for rank in range(processes):
                workers.start(process(rank, 0))
            return workers.until_all_ended(bell)


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Run a Python script as ``python script arguments...`` would; 0 if it comes to its end."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    return 0


@contextmanager
def _bell() -> Iterator[int]:
    """A pipe from which the numbers of the signals can be read that arrive meanwhile."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # What the caller ignores stays ignored, such as SIGHUP under nohup.
    numbers = [n for n in HELD_BACK if signal.getsignal(n) is not signal.SIG_IGN]
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


def _start_server(environment: Mapping[str, str]) -> None:
    """Start the process that imports once and forks the workers, unless it runs already."""
    mine = [name for name in sys.modules if name.partition(".")[0] == "hocket"]
    # The scripts of a user are not imported here: they may change between launches.
    own = [name for name in mine if name != "hocket.__main__"]
    forkserver.set_forkserver_preload([*own, *LATE])
    # Unblocks signals, so it must not be the server that starts it.
    resource_tracker.ensure_running()
    outside = dict(os.environ)
    # A signal to the whole process group must not end the server, and the workers with it,
    # before they ended in good order. What is blocked stays so in the processes it forks.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        # OpenMP reads its settings when it is loaded. Without the path the server would not
        # find what sys.path was extended by, and pass over it in silence.
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        os.environ |= {**environment, "PYTHONPATH": path}
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(outside)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _require(processes: int, threads: int, grace_s: float, timeout_s: float) -> None:
    problems = []
    if processes < 1:
        problems.append(f"processes is {processes}; use at least 1")
    if threads < 0:
        problems.append(f"threads is {threads}; use 0 to share the cores out, or at least 1")
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
        raise OptionError(listed("cannot start processes", problems))


def _pickled(work: Callable[..., int], arguments: Sequence[Any]) -> bytes:
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
