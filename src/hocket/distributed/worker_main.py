"""A process of a launched world, from its first line to its exit code.

It ends when the launcher ends, whatever it is doing: the kernel sees to that where it can.
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
# Held back while a process starts, and heard once it can act on them.
HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stream:
    """A file descriptor of the launcher that a worker is to have under the same number.

    The server that forks the workers has those of the first launch, which may be closed by now.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[..., "Stream"], tuple[int, Any]]:
        return _received, (self.number, DupFd(self.number))


def _received(number: int, sent: Any) -> Stream:
    descriptor = sent.detach()
    os.dup2(descriptor, number)
    os.close(descriptor)
    return Stream(number)


@dataclass(frozen=True)
class WorkerSpec:
    """What a process has to know to begin.

    Attributes:
        rank: Which process of the world it is.
        processes: How many there are.
        threads: How many threads PyTorch may use in it.
        folder: Where they meet; nobody else may write there.
        interface: Name of the network interface over which they talk.
        timeout_s: How long an operation of the world's default group waits.
        environment: Environment variables.
        work: The pickled function and its arguments.
        streams: Standard output and standard error.
        incarnation: Which of those that are started again, alone, it is; 0 for none.
        returns: Whether any may be.
    """

    rank: int
    processes: int
    threads: int
    folder: str
    interface: str
    timeout_s: float
    environment: Mapping[str, str]
    work: bytes
    streams: tuple[Stream, ...] = field(default_factory=lambda: (Stream(1), Stream(2)))
    incarnation: int = 0
    returns: bool = False


def worker_main(start: WorkerSpec) -> NoReturn:
    """Join the world, work, and end this process with the exit code."""
    # A session of its own: Ctrl-C in the terminal reaches the launcher and nobody else.
    os.setsid()
    _end_with_launcher()
    code = _code(start)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # it may be closed, or None
            stream.flush()
    # Not sys.exit: a thread that is blocked in a receive would hold the process for good.
    os._exit(code & 0xFF)


def _code(start: WorkerSpec) -> int:
    try:
        # The first process ends the training in good order for all.
        leads = start.rank == 0
        signal.signal(signal.SIGINT, signal.default_int_handler if leads else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        _join(start)
        work, arguments = pickle.loads(start.work)
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
        sys.stderr.write(f"process {start.rank} of {start.processes} failed:\n{trace}")
        return code


def _join(start: WorkerSpec) -> None:
    """Set what belongs to this process alone, and form the world."""
    os.environ.clear()
    os.environ.update(start.environment)
    os.environ |= {
        "RANK": str(start.rank),
        "WORLD_SIZE": str(start.processes),
        "LOCAL_RANK": str(start.rank),
        "LOCAL_WORLD_SIZE": str(start.processes),
        "GLOO_SOCKET_IFNAME": start.interface,
    }
    torch.set_num_threads(start.threads)
    shared = identity.open_store(start.folder)
    whereabouts = RejoinMarkers(start.folder, start.processes) if start.returns else None
    identity.set_identity(
        identity.ProcessIdentity(
            start.rank, start.processes, shared, start.incarnation, whereabouts
        )
    )
    if start.incarnation:
        return  # a process group takes nobody back
    # A store of TCP would listen on every interface and let anybody write.
    store = distributed.FileStore(  # type: ignore[attr-defined]  # exported conditionally
        str(Path(start.folder) / "store"), start.processes
    )
    distributed.init_process_group(
        "gloo",
        store=store,
        rank=start.rank,
        world_size=start.processes,
        timeout=timedelta(seconds=start.timeout_s),
    )
    # One that ends at once would break the connections that others still make to it.
    distributed.barrier()


def _end_with_launcher() -> None:
    """Be killed when the launcher ends, or gives this process up.

    That the parent ended would say less: it is the server that forks all workers, which stays
    for as long as one of them lives.
    """
    launcher = parent_process()
    assert launcher is not None, "only a launcher starts workers"
    pipe = launcher.sentinel
    if hasattr(fcntl, "F_SETSIG"):
        # The kernel kills when the launcher's end of the pipe closes. A thread that waits for
        # it could not run while C code holds the interpreter.
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
        if connection.wait([pipe], timeout=0):  # it closed before that
            os._exit(PEER_FAILED)
    else:
        Thread(target=_wait_for_end_of, args=(pipe,), daemon=True).start()


def _wait_for_end_of(pipe: int) -> None:
    connection.wait([pipe])
    os._exit(PEER_FAILED)
