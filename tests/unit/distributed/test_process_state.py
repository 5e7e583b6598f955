"""States of processes and threads, and the wait for those of gloo at the end of a process."""

import ctypes
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from contract.processes import wait_until
from hocket.distributed.folder import process_state as module
from hocket.distributed.folder.process_state import (
    GLOO_THREADS,
    is_at_work,
    leave_gloo,
    process_state,
)

PR_SET_NAME = 15


def work_until(end, left):
    """Be a busy thread of gloo, and then one that is asleep until the test has ended."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, f"{GLOO_THREADS}_test".encode(), 0, 0, 0)
    while not end.is_set():
        pass
    left.wait()


@pytest.fixture
def end():
    """The end of the work of a thread of gloo, which has begun."""
    end, left = threading.Event(), threading.Event()
    thread = threading.Thread(target=work_until, args=[end, left])
    thread.start()
    name = Path(f"/proc/self/task/{thread.native_id}/comm")
    wait_until(lambda: "_test" in name.read_text())
    yield end
    end.set()
    left.set()
    thread.join()


def test_a_thread_of_gloo_that_works_is_waited_for(end):
    threading.Timer(0.3, end.set).start()
    leave_gloo(60)
    assert end.is_set()


def test_a_thread_of_gloo_that_works_for_ever_is_left(end):
    leaving = threading.Thread(target=leave_gloo, args=[0.1], daemon=True)
    leaving.start()
    leaving.join(60)
    assert not leaving.is_alive()


@pytest.mark.parametrize(("program", "works"), [("while True: pass", True), ("input()", False)])
def test_the_kernel_knows_whether_a_process_is_at_work_or_stopped(program, works, monkeypatch):
    monkeypatch.setattr(module, "_WORK_S", 0.3)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe) as process:
        folder = Path("/proc", str(process.pid))
        wait_until(lambda: is_at_work(process.pid) == works)  # the interpreter may still start
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: process_state(folder) == "T")
        assert not is_at_work(process.pid)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: process_state(folder) in "RS")
        process.kill()
    assert process_state(folder) == ""
