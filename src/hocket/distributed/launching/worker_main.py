"""Main function of a launched process, from its first line to its exit code."""

import atexit
import gc
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import torch
from torch import distributed

from hocket.distributed.folder import identity
from hocket.distributed.folder.last_words import flush_files, write_last_words
from hocket.distributed.folder.launch_folder import LaunchFolder, Note
from hocket.distributed.folder.restart import STOP_SIGNALS
from hocket.distributed.network.strangers import form_default_group
from hocket.distributed.world import joined_worlds
from hocket.errors import PeerFailedError, PeerLostError


@dataclass(frozen=True)
class WorkerSpec:
    """Settings of one launched process.

    Attributes:
        threads: Number of threads that PyTorch may use in it.
        folder: Folder of the launch; no other user may write there.
        interface: Name of the network interface over which the processes talk.
        timeout_s: Seconds that an operation of the world's default group waits.
        directory: Working directory.
        module_path: ``sys.path``.
        arguments: ``sys.argv``.
        work: The pickled function and its arguments.
        incarnation: Number of the restart that begins this process alone; 0 for none.
    """

    rank: int
    processes: int
    threads: int
    folder: str
    interface: str
    timeout_s: float
    environment: Mapping[str, str]
    directory: str
    module_path: Sequence[str]
    arguments: Sequence[str]
    work: bytes
    incarnation: int = 0


def worker_main(spec: WorkerSpec) -> NoReturn:
    """Join the world, run the work, and end this process with its exit code."""
    code, in_order = _run_work(spec)
    # Python frees files in circles of references without writing what they have buffered.
    gc.disable()
    if in_order:
        # As at the end of a Python program: it ends the workers of loaders, for example.
        atexit._run_exitfuncs()
    flush_files()
    # Not sys.exit: a thread that is blocked in a receive would keep the process alive.
    os._exit(code & 0xFF)


def _run_work(spec: WorkerSpec) -> tuple[int, bool]:
    """Join the world and run the work.

    Returns:
        The exit code, and True if the work came to its end or exited itself.
    """
    try:
        # The first process ends the training in good order for all.
        signal.signal(signal.SIGINT, signal.SIG_IGN if spec.rank else _interrupt_once)
        # They were blocked while the process started.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

        # Meet the other processes.
        _set_up(spec)
        folder = LaunchFolder(spec.folder)
        folder.write(Note.STARTED, spec.rank, str(os.getpid()))
        try:
            _join(spec, folder)
        except RuntimeError as error:
            # Another process may know better, and the launcher whether one has died.
            if not folder.has(Note.SYMPTOM):
                text = (
                    f"hocket: process {spec.rank} of {spec.processes} could not connect to the "
                    f"others: {error}\n"
                )
                folder.write(Note.SYMPTOM, text=text)
            return PeerLostError.exit_code, False
        folder.write(Note.JOINED, spec.rank)

        # Work, and leave in good order.
        work, arguments = pickle.loads(spec.work)
        code = work(*arguments)
        if not code:
            joined_worlds.shutdown()
        sys.exit(code)
    except SystemExit as end:
        if not end.code:
            return 0, True
        joined_worlds.report_failure(end)
        return _exit_code(end, spec), True
    except KeyboardInterrupt as error:
        joined_worlds.report_failure(error)
        return joined_worlds.interrupt_code(error), False
    except BaseException as error:
        code = int(getattr(type(error), "exit_code", 1))
        if not joined_worlds.report_failure(error) or code == PeerFailedError.exit_code:
            return PeerFailedError.exit_code, False
        trace = "".join(traceback.format_exception(error))
        text = f"process {spec.rank} of {spec.processes} failed:\n{trace}"
        if not joined_worlds.report_symptom(error, text):
            write_last_words(text)
        return code, False


def _exit_code(end: SystemExit, spec: WorkerSpec) -> int:
    """Return the exit code of an exit with an error, and print what the program has not."""
    if not isinstance(end.code, int):
        write_last_words(f"{end.code}\n")
        return 1
    place = traceback.extract_tb(end.__traceback__)[-1]
    if place.filename != __file__:
        write_last_words(
            f"hocket: process {spec.rank} of {spec.processes} exited with code {end.code} at "
            f"{place.filename}:{place.lineno}\n"
        )
    return end.code


def _interrupt_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the work; a second Ctrl-C, which the launcher passes on, is ignored."""
    signal.signal(number, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


def _set_up(spec: WorkerSpec) -> None:
    """Give this process the folder, paths, arguments and environment of the launcher."""
    os.chdir(spec.directory)
    sys.path[:] = spec.module_path
    sys.argv[:] = spec.arguments
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
    if "numpy.random" in sys.modules:  # a fork copies its state; Python seeds its own again
        sys.modules["numpy.random"].seed()


def _join(spec: WorkerSpec, folder: LaunchFolder) -> None:
    """Set the identity of this process, and initialize the process group.

    Raises:
        RuntimeError: The store or another process cannot be reached.
    """
    # The identity, with which the process can also rejoin.
    shared = identity.open_store(folder)
    identity.set_identity(
        identity.ProcessIdentity(spec.rank, spec.processes, shared, spec.incarnation, folder)
    )
    if spec.incarnation:
        return  # a process group cannot take a process in
    # A TCP store would listen on every interface and let anybody write.
    store = distributed.FileStore(  # type: ignore[attr-defined]  # exported conditionally
        str(folder.path / "store"), spec.processes
    )
    form_default_group(store, spec.rank, spec.processes, spec.timeout_s)
    # A process that ends at once would break connections that others still make to it.
    distributed.barrier()
