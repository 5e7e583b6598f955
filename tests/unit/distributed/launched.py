"""What the workers of the launcher's tests do; each process imports it by name."""

import contextlib
import ctypes
import fcntl
import json
import multiprocessing
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import torch
from torch import distributed

from hocket.distributed import worker_main


class Witness(Exception):
    exit_code = worker_main.PEER_FAILED


class Hung(Exception):
    exit_code = 75


def rank():
    return distributed.get_rank()


def hang():
    # Not signal.pause, which a signal that comes just before it does not end.
    while True:
        time.sleep(0.05)


def add():
    """0 if the ranks of all processes add up."""
    total = torch.tensor(rank())
    distributed.all_reduce(total)
    return 0 if total == sum(range(distributed.get_world_size())) else 1


def lose_the_meeting(folder):
    """One process takes away the folder in which they meet; nobody says anything of that."""
    if rank() == 1:
        (place,) = Path(folder).glob("hocket-*")
        shutil.rmtree(place.rename(place.with_name("lost")))
    hang()


def report(folder):
    """Leave a file that tells what the process finds around it."""
    found = {
        "environment": dict(os.environ),
        "threads": torch.get_num_threads(),
        "leads a session": os.getsid(0) == os.getpid(),
        "ignores Ctrl-C": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "modes": [oct(f.stat().st_mode & 0o777) for f in Path(folder).glob("hocket-*")],
        "server": os.getppid(),
    }
    Path(folder, f"{rank()}.json").write_text(json.dumps(found))
    return 0


def speak(text):
    # In one piece each, which print does not promise.
    sys.stdout.write(f"{rank()} says {text}\n")
    sys.stderr.write(f"{rank()} warns of {text}\n")
    return 0


# Ends.


def give(code):
    return code


def leave(code):
    sys.exit(code)


def leave_at_once(code):
    os._exit(code)


def fail(kind):
    raise kind("the reason")


def die(number):
    """The last process dies by a signal; the others wait for it and find the line broken."""
    if rank() == distributed.get_world_size() - 1:
        os.kill(os.getpid(), number)
    distributed.barrier()
    return 0


def leave_a_thread_behind():
    threading.Thread(target=threading.Event().wait).start()
    return 0


def fail_apart(first, then):
    """Process 0 ends with one code; process 1 sees it go, and ends with the other."""
    if rank() == 0:
        return first
    with contextlib.suppress(RuntimeError):
        distributed.recv(torch.zeros(1), src=0)
    return then


def hang_after_witness(fifo):
    """Process 0 is a witness; process 1 hangs, and so does what it started."""
    if rank() == 0:
        distributed.barrier()
        raise Witness
    with open(fifo, "w") as line:
        subprocess.Popen(["sleep", "1000"], stdout=line)
    distributed.barrier()
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0


def kill_the_server(fifo):
    os.open(fifo, os.O_WRONLY)  # closes with the process
    distributed.barrier()
    if rank() == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    hang()


# Signals; process 1 sends them to the launcher when process 0 is ready for them.


def interrupted_in_good_order(launcher):
    """Process 0 is told of Ctrl-C, and ends the work for all."""
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


def interrupted_twice(launcher):
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


def interrupted_without_a_leader(launcher):
    if rank() == 0:
        distributed.send(torch.tensor(os.getpid()), dst=1)
        return 0
    distributed.recv(leader := torch.tensor(0), src=0)
    while Path(f"/proc/{int(leader)}").exists():
        time.sleep(0.01)
    os.kill(launcher, signal.SIGINT)
    time.sleep(10)
    return 5


def told(launcher, number):
    """The launcher gets a signal; nobody here does anything about what follows."""
    if rank() == 1:
        os.kill(launcher, number)
    hang()


def told_and_saves(launcher, folder):
    """All end in good order when they are asked to."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        distributed.barrier()
        if rank() == 1:
            os.kill(launcher, signal.SIGTERM)
        hang()
    finally:
        Path(folder, f"saved-{rank()}").touch()


def told_and_deaf(launcher):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    distributed.barrier()
    if rank() == 1:
        os.kill(launcher, signal.SIGTERM)
    hang()


def sends_and_goes_on(launcher, number):
    os.kill(launcher, number)
    return 0


# Who listens.


def listeners():
    """0 if every socket on which a process of this world listens is on loopback."""
    pids = [None] * distributed.get_world_size()
    distributed.all_gather_object(pids, os.getpid())
    where = [address for pid in pids for address in listening(pid)]
    distributed.barrier()
    outside = [address for address in where if address not in ("127.0.0.1", "::1")]
    print(f"listens on {where}")
    return 1 if outside or not where else 0


def listening(pid):
    """The addresses on which a process accepts connections, from Linux' tables."""
    return addresses(pid, states=("0A",))


def addresses(pid, states=None):
    """The addresses of a process's sockets in these states, or in any."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            own.add(os.readlink(link))
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *others = row.split()
            if (states is None or state in states) and f"socket:[{others[5]}]" in own:
                words = bytes.fromhex(local.partition(":")[0])
                # Each four bytes are a number in the machine's own order.
                parts = (words[i : i + 4] for i in range(0, len(words), 4))
                if sys.byteorder == "little":
                    parts = (part[::-1] for part in parts)
                yield socket.inet_ntop(family, b"".join(parts))


# Who lives.


def forked():
    """The processes of any launch that still live, from Linux' tables."""
    server = str(forkserver._forkserver._forkserver_pid)
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # What comes before it is a name in parentheses, of whatever it may be.
            state, parent = file.read_text().rpartition(")")[2].split()[:2]
            if parent == server and state != "Z":
                found.append(int(file.parent.name))
    return found


class Line:
    """A pipe with a name; it is open while a process lives that opened it for writing."""

    def __init__(self, folder):
        self.name = str(folder / "line")
        os.mkfifo(self.name)
        self.end = os.open(self.name, os.O_RDONLY | os.O_NONBLOCK)

    def closes_within(self, seconds):
        """Whether every writer ends in time; until then, what they write is passed over."""
        limit = time.monotonic() + seconds
        while select.select([self.end], [], [], max(0, limit - time.monotonic()))[0]:
            if not os.read(self.end, 4096):
                return True
        return False

    def rows(self, count):
        """The first so many lines that arrive."""
        text = b""
        while text.count(b"\n") < count:
            assert select.select([self.end], [], [], 60)[0], text
            text += os.read(self.end, 4096)
        return text.decode().splitlines()


# Without the kernel's help.


def launcher_that_dies(fifo):
    """Starts a process, waits until it watches, and is killed."""
    context = multiprocessing.get_context("forkserver")
    heard, say = context.Pipe(duplex=False)
    context.Process(target=watch_by_thread, args=(fifo, say)).start()
    heard.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def watch_by_thread(fifo, say):
    del fcntl.F_SETSIG
    worker_main._end_with_launcher()
    os.open(fifo, os.O_WRONLY)  # closes with the process
    say.send("watching")
    hang()


def hold_the_interpreter():
    ctypes.PyDLL(None).sleep(1000)
