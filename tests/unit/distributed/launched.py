"""Work of the processes in the tests of the launcher; each process imports it by name."""

import atexit
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import distributed

from benchmarks.faults.processes import all_processes
from contract.processes import wait_until
from hocket.cli.output import end_with_error
from hocket.distributed.launching import launch as launch_module
from hocket.distributed.network.sockets import own_sockets, readable
from hocket.distributed.world import joined_worlds
from hocket.errors import PeerFailedError


class PeerFailure(Exception):
    exit_code = PeerFailedError.exit_code


def rank():
    return distributed.get_rank()


def hang():
    # Not signal.pause, which a signal that comes just before it does not end.
    while True:
        time.sleep(0.05)


def add():
    """Return 0 if the sum of the ranks of all processes is right."""
    total = torch.tensor(rank())
    distributed.all_reduce(total)
    return 0 if total == sum(range(distributed.get_world_size())) else 1


def delete_the_rendezvous(folder):
    """Delete the folder of the launch in one process, and report nothing."""
    if rank() == 1:
        (launch_folder,) = Path(folder).glob("hocket-*")
        shutil.rmtree(launch_folder.rename(launch_folder.with_name("lost")))
    hang()


def report(folder):
    """Write the environment and the signal settings of the process to a file."""
    settings = {
        "environment": dict(os.environ),
        "threads": torch.get_num_threads(),
        "leads a session": os.getsid(0) == os.getpid(),
        "ignores Ctrl-C": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "modes": [oct(f.stat().st_mode & 0o777) for f in Path(folder).glob("hocket-*")],
        "server": os.getppid(),
        "drawn by NumPy": np.random.random(),
    }
    Path(folder, f"{rank()}.json").write_text(json.dumps(settings))
    return 0


# Ends of a process.


def return_code(code):
    return code


def exit_with(code):
    sys.exit(code)


def raise_error(kind):
    raise kind("the reason")


def die(number):
    """End the last process by a signal, while the others wait for it."""
    if rank() == distributed.get_world_size() - 1:
        os.kill(os.getpid(), number)
    distributed.barrier()
    return 0


def exit_with_a_file_open(folder, code):
    """Leave a function for the end, and a file that is kept by a circle of references."""
    atexit.register(Path(folder, "ended").touch)
    atexit.register(lambda: [[] for _ in range(10**6)])  # Python searches for garbage then
    circle = [Path(folder, "log").open("w")]  # noqa: SIM115  # as scripts do
    circle.append(circle)
    circle[0].write("result\n")
    sys.exit(code)


def leave_a_thread_behind():
    threading.Thread(target=threading.Event().wait).start()
    return 0


def fail_without_a_store(kinds, command_line):
    """Raise an error of its own kind in each process, none of which can ask the store.

    The processes fail in the order of their ranks.
    """

    def unanswered(*_):
        raise RuntimeError("no answer")

    joined_worlds.record_first_failure = unanswered
    if rank():
        with contextlib.suppress(RuntimeError):
            distributed.recv(torch.zeros(1), src=rank() - 1)
    error = kinds[rank()](f"the reason of {rank()}")
    if command_line:
        return end_with_error(error)
    raise error


def hang_after_peer_failure(fifo):
    """End process 0 as if another one had failed; hang process 1 and a child of it."""
    if rank() == 0:
        distributed.barrier()
        raise PeerFailure
    with open(fifo, "w") as pipe:
        subprocess.Popen(["sleep", "1000"], stdout=pipe)
    distributed.barrier()
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0


def fill_the_folder(folder):
    (launch_folder,) = Path(folder).glob("hocket-*")
    full = launch_folder / f"full-{rank()}"
    full.symlink_to("/dev/full")
    full.rename(launch_folder / "probe")  # which the launcher may be writing just now


def fill_the_disk(folder):
    """Let the next write to the folder of the launch fail, and end as if others had failed."""
    fill_the_folder(folder)
    raise PeerFailure


def fill_the_disk_of_a_healthy_launch(folder):
    """Let writes to the folder of the launch fail while no process has failed."""
    if rank() == 1:
        fill_the_folder(folder)
    hang()


def kill_the_server(fifo):
    os.open(fifo, os.O_WRONLY)  # closes with the process
    distributed.barrier()
    if rank() == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    hang()


# Signals; process 1 sends them to the launcher when process 0 is ready to handle them.


def interrupt_once(launcher):
    """Handle Ctrl-C in process 0, which ends the work for all."""
    if rank() == 1:
        distributed.barrier()
        os.kill(launcher, signal.SIGINT)
        distributed.recv(stop := torch.zeros(1), src=0)
        return int(stop)
    try:
        distributed.barrier()
        hang()
    except KeyboardInterrupt:
        distributed.send(torch.zeros(1), dst=1)
        return 130


def interrupt_twice(launcher):
    if rank() == 1:
        distributed.barrier()
        os.kill(launcher, signal.SIGINT)
        hang()
    try:
        distributed.barrier()
        hang()
    except KeyboardInterrupt:
        os.kill(launcher, signal.SIGINT)
        hang()


def interrupt_without_process_0(launcher):
    if rank() == 0:
        distributed.send(torch.tensor(os.getpid()), dst=1)
        return 0
    distributed.recv(first := torch.tensor(0), src=0)
    wait_until(lambda: not Path(f"/proc/{int(first)}").exists())
    time.sleep(1)  # its exit code gets to the launcher
    os.kill(launcher, signal.SIGINT)
    time.sleep(10)
    return 5


def signal_launcher(launcher, number):
    """Send a signal to the launcher, and hang with the default signal handlers."""
    if rank() == 1:
        os.kill(launcher, number)
    hang()


def signal_launcher_and_ignore(launcher, again=False):
    """Send SIGTERM to the launcher, perhaps again and again; all processes ignore it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    distributed.barrier()
    if rank() == 1:
        os.kill(launcher, signal.SIGTERM)
        while again:  # two that come at once would be one signal
            time.sleep(0.5)
            os.kill(launcher, signal.SIGTERM)
    hang()


def signal_launcher_and_return(launcher, number):
    os.kill(launcher, number)
    return 0


# Sockets.


def socket_addresses(listening=False):
    """Return the addresses of this process's sockets, all or those that accept connections."""
    sockets = [each for each in own_sockets() if each.listening or not listening]
    return [readable(each.local).rpartition(":")[0] for each in sockets]


# Processes that still run.


def forked_processes():
    """Return the processes of all launches that still run, from tables of Linux."""
    servers = [server._process.pid for server in launch_module._servers]
    everywhere = all_processes()
    return [pid for pid, state, parent, _ in everywhere if parent in servers and state != "Z"]


class NamedPipe:
    """A named pipe; it is open while a process runs that has opened it for writing."""

    def __init__(self, folder):
        self.name = str(folder / "pipe")
        os.mkfifo(self.name)
        self.end = os.open(self.name, os.O_RDONLY | os.O_NONBLOCK)

    def closes_within(self, seconds):
        """Return True if every writer ends in time; discard the text that they write."""
        limit = time.monotonic() + seconds
        while select.select([self.end], [], [], max(0, limit - time.monotonic()))[0]:
            if not os.read(self.end, 4096):
                return True
        return False

    def rows(self, count):
        """Return the first ``count`` lines that are written."""
        text = b""
        while text.count(b"\n") < count:
            assert select.select([self.end], [], [], 300)[0], text
            text += os.read(self.end, 4096)
        return text.decode().splitlines()


def hold_the_interpreter():
    ctypes.PyDLL(None).sleep(1000)
