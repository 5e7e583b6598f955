"""A server process that imports PyTorch once, and forks the processes of all launches.

A process that it forks is like one that ``python`` has started: it is no child of
`multiprocessing`, so the workers of a `DataLoader` start in it as they do elsewhere. It leads a
process group, and what is left of the group is killed when it ends. When the launcher ends, the
server kills all groups and deletes the folder of the launch, even if they hang.
The kernel kills the processes if the server itself is killed.
"""

import atexit
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe, connection, reduction
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from hocket.distributed.folder.restart import STOP_SIGNALS
from hocket.distributed.launching.deferred_compiler import defer_compiler
from hocket.distributed.launching.worker_main import WorkerSpec, worker_main
from hocket.errors import PeerLostError
from hocket.standard_stream import fill_standard_streams

IMPORT_TIMEOUT_S = 300.0
"""Seconds in which the server must have imported its modules."""
FORK_TIMEOUT_S = 60.0
"""Seconds in which the server must have forked a process."""
_PR_SET_PDEATHSIG = 1  # of prctl(2)


class ForkServer:
    """The launcher's end of a server, which ends when this process does.

    Args:
        environment: Environment variables of the server; libraries read some when loaded.
        modules: Names of the modules that the server imports; those that fail are skipped.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        fill_standard_streams()
        self._launcher = os.getpid()
        self._is_ready = False
        self._control, theirs = Pipe()
        path = [os.fsdecode(folder) or os.getcwd() for folder in sys.path]
        program = (
            f"import sys; sys.path[:] = {path!r}; from {__name__} import serve; "
            f"serve({theirs.fileno()}, {list(modules)!r})"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        # A signal to all processes of a job must not end the server before the processes have
        # ended in good order. A blocked signal stays blocked in the processes that it forks.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", program],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
        atexit.register(self.stop)

    @property
    def runs(self) -> bool:
        """True if this process may use the server: it has started it, and not lost it."""
        return self._launcher == os.getpid() and self._process.poll() is None

    def stop(self) -> None:
        """Kill the server, and wait for its end."""
        if self._launcher == os.getpid():
            self._control.close()
            self._process.kill()
            self._process.wait()

    def wait_until_ready(self, signal_pipe: int) -> int:
        """Wait until the server has imported its modules.

        Args:
            signal_pipe: File descriptor from which the numbers of arriving signals are read.

        Returns:
            0, or the number of a signal that asks for the end; the server is then stopped.

        Raises:
            PeerLostError: The server has ended, or does not become ready.
        """
        while not self._is_ready:
            ready = connection.wait([self._control, signal_pipe], IMPORT_TIMEOUT_S)
            if signal_pipe in ready:
                if (number := os.read(signal_pipe, 1)[0]) in STOP_SIGNALS:
                    self.stop()
                    return number
            elif self._control in ready and _receive(self._control) is not None:
                self._is_ready = True
            else:
                raise self._lost("was importing PyTorch")
        return 0

    def fork(self, spec: WorkerSpec) -> "ForkedProcess":
        """Fork a process that runs `worker_main`; it writes to the streams of this process.

        Raises:
            PeerLostError: The server has ended, does not answer, or cannot fork.
        """
        status, theirs = Pipe(duplex=False)
        answer = None
        with suppress(OSError), theirs:
            fill_standard_streams()
            self._control.send(spec)
            for descriptor in (theirs.fileno(), 1, 2):
                reduction.send_handle(self._control, descriptor, self._process.pid)
            theirs.close()
            answer = _receive(status) if status.poll(FORK_TIMEOUT_S) else None
        if isinstance(answer, int):
            return ForkedProcess(self, answer, status)
        status.close()
        if answer is None:
            raise self._lost(f"was to fork process {spec.rank}")
        raise PeerLostError(f"process {spec.rank} cannot be forked: {answer}; see `ulimit -u`")

    def _lost(self, activity: str) -> PeerLostError:
        self.stop()
        return PeerLostError(
            f"the server process that forks all others {activity}, and was killed, perhaps "
            "because memory ran out, or did not answer"
        )


class ForkedProcess:
    """A process that a server has forked.

    Args:
        pid: Number of the process, and of its process group.
        status: Connection over which the server sends the exit code.

    Attributes:
        sentinel: File descriptor that becomes readable when the process ends.
        has_ended: True once its end has been noticed.
    """

    def __init__(self, server: ForkServer, pid: int, status: Connection) -> None:
        self.pid = pid
        self.sentinel = status.fileno()
        self._status = status
        self.has_ended = False
        self._server = server

    def wait(self) -> int | None:
        """Wait for the end of the process, once.

        Returns:
            The exit code, -n for a death by signal n, or None if the server was killed, so that
            it is not known and the process perhaps still runs.
        """
        code: int | None = _receive(self._status)
        if code is None:
            self.send(signal.SIGKILL)
            self._server.stop()
        self.has_ended = True
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; SIGKILL goes to its whole group."""
        if self.has_ended:
            return
        if number == signal.SIGKILL:
            _kill_group(self.pid)
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def close(self) -> None:
        """Kill what still runs, and close the connection."""
        if not self.has_ended:
            self.send(signal.SIGKILL)
            self.wait()
        self._status.close()


def serve(control: int, modules: Sequence[str]) -> NoReturn:
    """Run the server: import modules, and fork processes until the launcher ends.

    Args:
        control: File descriptor of the connection to the launcher.
        modules: Names of modules to import.
    """
    defer_compiler()
    for name in modules:
        with suppress(ImportError):
            import_module(name)
    _Server(Connection(control)).run()


class _Server:
    """The server's own end of the connection to the launcher."""

    def __init__(self, control: Connection) -> None:
        self._control = control
        self._statuses: dict[int, Connection] = {}  # for exit codes, by number of a process
        self._folder = ""
        self._wake, self._wake_end = os.pipe()
        for end in (self._wake, self._wake_end):
            os.set_blocking(end, False)
        # The end of a process interrupts the wait for requests.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        """Answer requests until the launcher ends; kill what it has left."""
        try:
            # The launcher has ended, perhaps before it read what was sent.
            with suppress(OSError, EOFError):
                self._control.send("ready")
                while True:
                    self._answer()
        except Exception:  # no request may leave processes behind
            traceback.print_exc()
        for pid in self._statuses:
            _kill_group(pid)
        for pid in self._statuses:
            os.waitpid(pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)

    def _answer(self) -> None:
        """Handle a request or the end of a process.

        Raises:
            OSError: The launcher has ended.
            EOFError: The same, between two requests.
        """
        ready = connection.wait([self._control, self._wake])
        if self._wake in ready:
            os.read(self._wake, 4096)
            self._report_ends()
        if self._control not in ready:
            return
        spec: WorkerSpec = self._control.recv()
        self._folder = spec.folder
        number, *output = (reduction.recv_handle(self._control) for _ in range(3))
        status, server = Connection(number, readable=False), os.getpid()
        answer: int | str
        try:
            if not (answer := os.fork()):
                self._become_worker(spec, status, output, server)
            self._statuses[answer] = status
        except OSError as error:  # memory is short, or there are too many processes
            answer = str(error)
        for stream in output:
            os.close(stream)
        _send(status, answer)

    def _report_ends(self) -> None:
        """Report the exit codes of processes that have ended, and kill what they have left."""
        while self._statuses:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            # The number of a group is not given away while one of its processes runs.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with self._statuses.pop(pid) as launcher:
                _send(launcher, os.waitstatus_to_exitcode(status))

    def _become_worker(
        self, spec: WorkerSpec, status: Connection, output: Sequence[int], server: int
    ) -> NoReturn:
        """Leave nothing of the server in this process, which was just forked, and run it."""
        try:
            if sys.platform == "linux":  # the kernel kills this process with the server
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:  # which has ended already
                os._exit(1)
            # A new session: Ctrl-C in the terminal reaches the launcher only.
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, stream in zip((1, 2), output, strict=True):
                os.dup2(stream, number)
            for pipe in (self._control, status, *self._statuses.values()):
                pipe.close()
            for descriptor in (*output, self._wake, self._wake_end):
                os.close(descriptor)
            worker_main(spec)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _kill_group(pid: int) -> None:
    """Kill a process and its group, which it may not have formed yet."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def _receive(sender: Connection) -> Any:
    """Return what was sent; None if the other side has ended."""
    try:
        return sender.recv()
    except (EOFError, OSError):
        return None


def _send(launcher: Connection, answer: int | str) -> None:
    with suppress(OSError):  # the launcher has ended
        launcher.send(answer)
