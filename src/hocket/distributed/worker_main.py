"""Main function of a launched process, from its first line to its exit code.

The process ends when the launcher ends, whatever it is doing; on Linux the kernel kills it.
"""

import fcntl
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection, parent_process
from multiprocessing.reduction import DupFd
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

import torch
from torch import distributed

from hocket.distributed import identity, world
from hocket.distributed.rejoin_files import RejoinMarkers
from hocket.errors import PeerFailedError

# Exit code of a process that ends only because another one failed.
PEER_FAILED = PeerFailedError.exit_code
# Blocked while a process starts, and handled once it is ready for them.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InheritedDescriptor:
    """A file descriptor of the launcher that a process gets under the same number.

    The server that forks the processes has the descriptors of the first launch, which may be
    closed by now.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[..., "InheritedDescriptor"], tuple[int, Any]]:
        return _install_descriptor, (self.number, DupFd(self.number))


def _install_descriptor(number: int, sent: Any) -> InheritedDescriptor:
    descriptor = sent.detach()
    os.dup2(descriptor, number)
    os.close(descriptor)
    return InheritedDescriptor(number)


@dataclass(frozen=True)
class WorkerSpec:
    """Settings of one launched process.

    Attributes:
        rank: Rank of the process.
        processes: Number of processes.
        threads: Number of threads that PyTorch may use in it.
        folder: Folder of the launch; nobody else may write there.
        interface: Name of the network interface over which the processes talk.
        timeout_s: Seconds that an operation of the world's default group waits.
        environment: Environment variables.
        work: The pickled function and its arguments.
        streams: Standard output and standard error.
        incarnation: Number of the restart that begins this process alone; 0 for none.
        can_rejoin: Whether a killed process may be replaced.
    """

    rank: int
    processes: int
    threads: int
    folder: str
    interface: str
    timeout_s: float
    environment: Mapping[str, str]
    work: bytes
    streams: tuple[InheritedDescriptor, ...] = field(
        default_factory=lambda: (InheritedDescriptor(1), InheritedDescriptor(2))
    )
    incarnation: int = 0
    can_rejoin: bool = False


def worker_main(spec: WorkerSpec) -> NoReturn:
    """Join the world, run the work, and end this process with its exit code."""
    # A session of its own: Ctrl-C in the terminal reaches the launcher and nobody else.
    os.setsid()
    _exit_with_launcher()
    code = _run_work(spec)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # it may be closed, or None
            stream.flush()
    # Not sys.exit: a thread that is blocked in a receive would keep the process alive.
    os._exit(code & 0xFF)


def _run_work(spec: WorkerSpec) -> int:
    """Join the world and run the work; return the exit code."""
    try:
        # The first process ends the training in good order for all.
        handles = spec.rank == 0
        signal.signal(signal.SIGINT, signal.default_int_handler if handles else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        _join(spec)
        work, arguments = pickle.loads(spec.work)
        code = work(*arguments)
        if not code:
            world.shutdown()
        sys.exit(code)
    except SystemExit as end:
        if not end.code:
            return 0
        world.report_failure(end)
        if isinstance(end.code, int):
            return end.code
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        world.report_failure(error)
        return 128 + signal.SIGINT
    except BaseException as error:
        code = int(getattr(type(error), "exit_code", 1))
        if not world.report_failure(error) or code == PEER_FAILED:
            return PEER_FAILED
        # In one piece, as other processes write at the same time.
        trace = "".join(traceback.format_exception(error))
        sys.stderr.write(f"process {spec.rank} of {spec.processes} failed:\n{trace}")
        return code


def _join(spec: WorkerSpec) -> None:
    """Set the environment and identity of this process, and initialize the process group."""
    os.environ.clear()
    os.environ.update(spec.environment)
    os.environ |= {
        "RANK": str(spec.rank),
        "WORLD_SIZE": str(spec.processes),
        "LOCAL_RANK": str(spec.rank),
        "LOCAL_WORLD_SIZE": str(spec.processes),
        "GLOO_SOCKET_IFNAME": spec.interface,
    }
    torch.set_num_threads(spec.threads)
    shared = identity.open_store(spec.folder)
    markers = RejoinMarkers(spec.folder, spec.processes) if spec.can_rejoin else None
    identity.set_identity(
        identity.ProcessIdentity(spec.rank, spec.processes, shared, spec.incarnation, markers)
    )
    if spec.incarnation:
        return  # a process group cannot take a process in
    # A TCP store would listen on every interface and let anybody write.
    store = distributed.FileStore(  # type: ignore[attr-defined]  # exported conditionally
        str(Path(spec.folder) / "store"), spec.processes
    )
    distributed.init_process_group(
        "gloo",
        store=store,
        rank=spec.rank,
        world_size=spec.processes,
        timeout=timedelta(seconds=spec.timeout_s),
    )
    # A process that ends at once would break connections that others still make to it.
    distributed.barrier()


def _exit_with_launcher() -> None:
    """Make this process die when the launcher ends or closes its pipe.

    The parent process is no substitute: it is the server that forks all processes, which lives
    as long as one of them does.
    """
    launcher = parent_process()
    assert launcher is not None, "only a launcher starts workers"
    pipe = launcher.sentinel
    if hasattr(fcntl, "F_SETSIG"):
        # The kernel kills this process when the launcher's end of the pipe closes. A thread
        # that waits for it could not run while C code holds the interpreter.
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
        if connection.wait([pipe], timeout=0):  # it closed before that
            os._exit(PEER_FAILED)
    else:
        Thread(target=_exit_when_closed, args=(pipe,), daemon=True).start()


def _exit_when_closed(pipe: int) -> None:
    connection.wait([pipe])
    os._exit(PEER_FAILED)
