"""Launched processes form a world, end with the right code, and leave nothing behind."""

import errno
import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from benchmarks.faults.processes import children_of
from contract.processes import wait_until
from end_to_end.torchrun import TEST_PATH
from hocket.cli.main import main
from hocket.distributed.folder.launch_folder import LaunchFolder, Note
from hocket.distributed.folder.restart import describe_loss
from hocket.distributed.launching import launch as launch_module
from hocket.distributed.launching import supervisor
from hocket.distributed.launching.fork_server import ForkServer
from hocket.distributed.launching.launch import launch
from hocket.distributed.launching.supervisor import Supervisor
from hocket.errors import HangError, OptionError, PeerFailedError, PeerLostError
from unit.distributed import launched

PROC = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc of Linux")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Folder for temporary folders, so that one left behind is found.

    Its path is longer than that of a socket may be.
    """
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    yield long
    assert not list(tmp_path.rglob("hocket-*"))


@pytest.fixture(autouse=True)
def _signals_as_before():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture
def pipe(folder):
    pipe = launched.NamedPipe(folder)
    yield pipe
    os.close(pipe.end)


# The environment of a process.


def test_a_process_that_ends_at_once_does_not_break_the_start_of_others():
    assert launch(launched.return_code, 0, processes=8) == 0


def reports(folder, **options):
    assert launch(launched.report, str(folder), **options) == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@PROC
def test_each_process_knows_its_rank_and_its_threads_do_not_spin(folder, monkeypatch):
    # The server that forks the processes has the variables of the first launch.
    launch(launched.return_code, 0, processes=1)
    monkeypatch.setenv("SET_AFTER_AN_EARLIER_LAUNCH", "yes")
    drawn = set()
    for rank, settings in enumerate(reports(folder, processes=2)):
        variables = settings["environment"]
        assert variables["RANK"] == variables["LOCAL_RANK"] == str(rank)
        assert variables["WORLD_SIZE"] == variables["LOCAL_WORLD_SIZE"] == "2"
        assert variables["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
        assert variables["SET_AFTER_AN_EARLIER_LAUNCH"] == "yes"
        assert variables["OMP_WAIT_POLICY"] == "passive"
        # OpenMP reads it when it is loaded, which is in the server.
        environment = Path(f"/proc/{settings['server']}/environ").read_bytes().split(b"\0")
        assert b"OMP_WAIT_POLICY=passive" in environment
        assert settings["leads a session"]
        assert settings["ignores Ctrl-C"] == (rank != 0)
        assert settings["blocked"] == []
        assert settings["modes"] == ["0o700"]
        drawn.add(settings["drawn by NumPy"])
    assert len(drawn) == 2, "processes draw the same numbers"
    assert "RANK" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    settings, _ = reports(folder, processes=2)
    assert settings["environment"]["OMP_WAIT_POLICY"] == "active"


def test_the_cores_are_divided_evenly_and_more_threads_are_warned_of(folder, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert [each["threads"] for each in reports(folder, processes=2)] == [3, 3]
    with pytest.warns(UserWarning, match="2 processes of 4 threads want 8 cores and 6 can be"):
        assert [each["threads"] for each in reports(folder, processes=2, threads=4)] == [4, 4]
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert [each["threads"] for each in reports(folder, processes=2)] == [1, 1]


# How a process ends.


@pytest.mark.parametrize(
    ("work", "argument", "code", "message"),
    [
        (launched.return_code, 3, 3, ""),
        (launched.return_code, 256 + 3, 3, ""),
        (launched.exit_with, None, 0, ""),
        (launched.exit_with, 4, 4, "hocket: process 0 of 1 exited with code 4 at "),
        (launched.exit_with, "no more", 1, "no more\n"),
        (os._exit, 6, 6, ""),
        (launched.raise_error, KeyboardInterrupt, 130, ""),
        (launched.raise_error, launched.PeerFailure, PeerFailedError.exit_code, ""),
        (launched.exit_with, -1, 255, "hocket: process 0 of 1 exited with code -1 at "),
    ],
)
def test_the_exit_code_is_kept(capfd, work, argument, code, message):
    assert launch(work, argument, processes=1) == code
    err = capfd.readouterr().err
    assert err.startswith(message)
    assert bool(err) == bool(message)


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGKILL, 137, "hocket: process 1 was ended by SIGKILL, perhaps by the kernel"),
        (signal.SIGSEGV, 139, "hocket: process 1 was ended by SIGSEGV\n"),
        (40, 168, "hocket: process 1 was ended by signal 40\n"),
    ],
)
def test_a_death_by_signal_is_reported(capfd, number, code, message):
    assert launch(launched.die, int(number), processes=2) == code
    assert message in capfd.readouterr().err


@pytest.fixture
def signals():
    """Ends of a pipe through which a supervisor hears of signals: to read, and to write."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def supervised(folder, reading, *processes):
    """Return the exit code of a launch of these processes."""
    with Supervisor(0, folder, pytest.fail) as supervising:
        for process in processes:
            supervising.add(process)
        return supervising.wait(reading)


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((1, -signal.SIGSEGV), 128 + signal.SIGSEGV),
        ((PeerFailedError.exit_code, 5), 5),
        ((5, PeerFailedError.exit_code), 5),
        ((PeerFailedError.exit_code, PeerFailedError.exit_code), PeerFailedError.exit_code),
        ((3, 5), 3),
        ((0, 5), 5),
        ((PeerLostError.exit_code, 5), 5),
        ((HangError.exit_code, PeerLostError.exit_code), HangError.exit_code),
        ((PeerLostError.exit_code, HangError.exit_code), HangError.exit_code),
        ((5, PeerLostError.exit_code), 5),
    ],
)
def test_the_exit_code_is_that_of_the_first_process_that_failed_on_its_own(
    tmp_path, signals, codes, code
):
    processes = map(EndedProcess, codes)
    assert supervised(LaunchFolder(tmp_path), signals[0], *processes) == code


def test_a_death_that_is_noticed_after_its_consequences_is_the_cause(tmp_path, signals):
    killed = EndedProcess(-signal.SIGSEGV, ended=False)
    second = EndedProcess(1, killed.end, ended=False)
    processes = EndedProcess(1, second.end), second, killed
    code = supervised(LaunchFolder(tmp_path), signals[0], *processes)
    assert code == 128 + signal.SIGSEGV


def test_beside_a_death_at_the_start_nobody_tells_that_it_cannot_connect(
    tmp_path, signals, capfd
):
    folder = LaunchFolder(tmp_path)
    folder.write(Note.SYMPTOM, text="process 1 of 2 could not connect to the others\n")
    processes = map(EndedProcess, (-signal.SIGKILL, PeerLostError.exit_code))
    assert supervised(folder, signals[0], *processes) == 137
    (message,) = capfd.readouterr().err.splitlines()
    assert message.startswith("hocket: process 0 was ended by SIGKILL")


def test_a_signal_of_the_moment_in_which_the_last_process_ends_is_heard(tmp_path, signals):
    """Else a job that somebody has stopped would be started again."""
    reading, writing = signals
    late = partial(os.write, writing, bytes([signal.SIGTERM]))
    process = EndedProcess(-signal.SIGKILL, late)
    assert supervised(LaunchFolder(tmp_path), reading, process) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("code", "found"), [(-signal.SIGKILL, 130), (HangError.exit_code, 130), (1, 1)]
)
def test_what_is_lost_after_ctrl_c_is_not_started_again(tmp_path, signals, code, found):
    folder, (reading, writing) = LaunchFolder(tmp_path), signals
    folder.write(Note.JOINED, 0)
    os.write(writing, bytes([signal.SIGINT]))
    assert supervised(folder, reading, EndedProcess(code)) == found


class EndedProcess:
    """A process that has already ended when the supervisor first looks, or ends later.

    ``meanwhile`` is called while the supervisor asks for its exit code.
    """

    def __init__(self, code, meanwhile=lambda: None, ended=True):
        self.code = code
        self.meanwhile = meanwhile
        self.sentinel, self.other = os.pipe()
        if ended:
            self.end()

    def end(self):
        os.close(self.other)

    def wait(self):
        self.meanwhile()
        return self.code

    def send(self, number):
        pass

    def close(self):
        os.close(self.sentinel)


@pytest.mark.parametrize("code", [0, 5])
def test_a_program_that_exits_ends_as_one_of_python(folder, code):
    assert launch(launched.exit_with_a_file_open, str(folder), code, processes=1) == code
    assert (folder / "ended").exists()
    assert (folder / "log").read_text() == "result\n"


def test_a_thread_left_behind_does_not_keep_the_process_alive():
    assert launch(launched.leave_a_thread_behind, processes=2) == 0


# The first failure, and the end of the other processes.


@pytest.mark.parametrize(
    ("kinds", "code", "told", "command_line"),
    [
        ((PeerLostError, OptionError), 2, [1], False),
        ((PeerLostError, OptionError), 2, [1], True),
        ((OptionError, HangError), 2, [0], False),
        ((HangError, PeerLostError), HangError.exit_code, [1], True),
    ],
)
def test_a_loss_is_not_told_beside_its_cause_even_if_the_store_does_not_answer(
    capfd, kinds, code, told, command_line
):
    codes = (code, 1) if code == 2 else (code,)
    work = launched.fail_without_a_store
    assert launch(work, kinds, command_line, processes=2, grace_s=60) in codes
    err = capfd.readouterr().err
    assert [rank for rank in range(2) if f"the reason of {rank}" in err] == told


def test_a_process_that_hangs_is_killed_after_the_grace_period_and_named(capfd, pipe):
    begin = time.monotonic()
    code = launch(launched.hang_after_peer_failure, pipe.name, processes=2, grace_s=0.2)
    assert time.monotonic() - begin < 120
    assert code == PeerFailedError.exit_code
    assert capfd.readouterr().err == (
        "hocket: process 1 hung: it still ran 0.2 s after process 0 ended with code 74, and "
        "was killed\n"
    )
    assert pipe.closes_within(60), "a child of the process outlived it"


# Signals that reach the launcher.


@PROC
def test_ctrl_c_kills_where_the_first_process_has_ended():
    work = launched.interrupt_without_process_0
    assert launch(work, os.getpid(), processes=2) == 130


@pytest.mark.parametrize(
    ("work", "arguments", "grace_s", "code"),
    [
        (launched.interrupt_once, (), 60, 130),
        (launched.interrupt_twice, (), 60, 130),
        (launched.signal_launcher, (int(signal.SIGTERM),), 60, 143),
        (launched.signal_launcher, (int(signal.SIGHUP),), 60, 129),
        (launched.signal_launcher_and_ignore, (True,), 3600, 143),
    ],
    ids=["Ctrl-C", "a second Ctrl-C", "SIGTERM", "SIGHUP", "a second SIGTERM"],
)
def test_a_signal_ends_all_without_a_word(capfd, work, arguments, grace_s, code):
    """Ctrl-C goes to the first process, which ends the work; a second signal kills all."""
    assert launch(work, os.getpid(), *arguments, processes=2, grace_s=grace_s) == code
    assert capfd.readouterr().err == ""


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(capfd):
    work = launched.signal_launcher_and_ignore
    assert launch(work, os.getpid(), processes=2, grace_s=0.2) == 143
    message = "hung: it still ran 0.2 s after the launcher received SIGTERM, and was killed"
    err = capfd.readouterr().err
    assert err == f"hocket: process 0 {message}\nhocket: process 1 {message}\n"


@pytest.mark.parametrize(
    ("number", "ignored"), [(signal.SIGHUP, True), (signal.SIGUSR1, False)]
)
def test_signals_that_the_caller_ignores_and_others_are_left_to_the_caller(number, ignored):
    heard = []
    handler = signal.SIG_IGN if ignored else lambda *_: heard.append(number)
    before = signal.signal(number, handler)
    try:
        work = launched.signal_launcher_and_return
        assert launch(work, os.getpid(), int(number), processes=1) == 0
    finally:
        signal.signal(number, before)
    assert heard == ([] if ignored else [number])


# No process is left behind, and a server that is lost is replaced.


def test_a_server_that_is_killed_is_a_loss_after_which_a_new_one_starts(capfd, pipe):
    assert launch(launched.kill_the_server, pipe.name, processes=2) == 137
    assert pipe.closes_within(60), "a process outlived the server"
    (message,) = capfd.readouterr().err.splitlines()
    assert message.startswith("hocket: the server process that had forked all others was kill")
    assert describe_loss(137) == "a process was killed by SIGKILL"
    assert launch(launched.add, processes=2) == 0


def test_a_server_that_is_lost_before_it_forks_is_told(capfd, monkeypatch):
    assert launch(launched.return_code, 0, processes=1) == 0
    original = ForkServer.fork

    def fork(server, spec):
        server._process.kill()
        return original(server, spec)

    monkeypatch.setattr(ForkServer, "fork", fork)
    assert launch(launched.add, processes=2) == PeerLostError.exit_code
    expected = "hocket: the server process that forks all others was to fork process 0, and was"
    assert capfd.readouterr().err.startswith(expected)


def test_a_server_that_cannot_fork_tells_the_reason(folder, capfd, monkeypatch):
    Path(folder, "no_fork.py").write_text(
        "import os\n"
        "def fork():\n"
        "    raise BlockingIOError(11, 'too many')\n"
        "os.fork = fork\n"
    )  # fmt: skip
    monkeypatch.syspath_prepend(folder)
    server = ForkServer(os.environ, ["no_fork"])
    monkeypatch.setattr(launch_module, "_servers", [server])
    assert launch(launched.add, processes=2) == PeerLostError.exit_code
    assert "hocket: process 0 cannot be forked: [Errno 11] too many; " in capfd.readouterr().err
    assert server.runs
    server.stop()


def test_a_server_that_cannot_start_or_is_not_wanted_any_more_is_stopped(signals):
    reading, writing = signals
    broken = ForkServer({"PYTHONHOME": "/nowhere"}, [])
    with pytest.raises(PeerLostError, match="importing PyTorch, and was killed"):
        broken.wait_until_ready(reading)
    early = ForkServer(os.environ, [])
    os.write(writing, bytes([signal.SIGUSR1, signal.SIGTERM]))
    assert early.wait_until_ready(reading) == signal.SIGTERM
    assert not broken.runs
    assert not early.runs


# The start.


def at_birth(monkeypatch, happen):
    """Let something happen when the first process has just been forked."""
    original = ForkServer.fork

    def fork(server, spec):
        process = original(server, spec)
        if spec.rank == 0:
            happen(process)
        return process

    monkeypatch.setattr(ForkServer, "fork", fork)


def test_a_process_that_is_stopped_at_birth_is_named_and_all_are_killed(
    capfd, folder, monkeypatch
):
    class Clock:
        """A clock that stands still until the other process has started."""

        seconds = property(lambda _: 60.0 * any(folder.rglob("started-1")))

    monkeypatch.setattr(supervisor, "RunningClock", lambda _: Clock())
    at_birth(monkeypatch, lambda process: process.send(signal.SIGSTOP))
    assert launch(launched.add, processes=2, grace_s=1000) == HangError.exit_code
    message = "hung: it was not connected to the others 60 s after its start, and was killed"
    assert capfd.readouterr().err == f"hocket: process 0 {message}\n"


def stop_and_press_ctrl_c(process):
    process.send(signal.SIGSTOP)  # so that the work does not begin before that is heard
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("happen", "code", "told"),
    [
        (lambda process: process.send(signal.SIGKILL), 137, "hocket: process 0 was ended by"),
        (stop_and_press_ctrl_c, 130, ""),
    ],
    ids=["killed", "Ctrl-C"],
)
def test_a_process_that_is_killed_at_birth_is_the_only_thing_told_and_ctrl_c_is_not(
    capfd, monkeypatch, happen, code, told
):
    at_birth(monkeypatch, happen)
    assert launch(launched.add, processes=2, grace_s=1000) == code
    lines = capfd.readouterr().err.splitlines()
    # Gloo logs that a peer is gone if that was killed after it had told its address.
    lines = [line for line in lines if "/gloo/transport/" not in line]
    assert [line.startswith(told) for line in lines] == [True] * bool(told)


def test_processes_that_cannot_connect_say_why(capfd, monkeypatch):
    monkeypatch.setattr(launch_module, "loopback_interface", lambda: "no_such_interface")
    assert launch(launched.add, processes=2) == PeerLostError.exit_code
    (message,) = capfd.readouterr().err.splitlines()
    assert re.match(r"hocket: process [01] of 2 could not connect to the others: ", message)


def test_a_folder_that_cannot_be_written_is_refused(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    with pytest.raises(OptionError, match=r"No such file.*or set TMPDIR to a folder in which"):
        launch(launched.add, processes=1)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    problem = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(LaunchFolder, "find_problem", lambda _: problem)
    with pytest.raises(OptionError, match="No space left on device; make room there"):
        launch(launched.add, processes=1)


FULL = r"hocket: nothing can be written to '.*', through .*: .*No space left on device"


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (launched.fill_the_disk, FULL),
        (launched.fill_the_disk_of_a_healthy_launch, FULL),
        (launched.delete_the_rendezvous, "hocket: '.*/rendezvous', through .*, was deleted"),
    ],
)
def test_all_are_killed_where_they_cannot_communicate(capfd, folder, work, told):
    assert launch(work, str(folder), processes=2, grace_s=60) == 72
    (message,) = capfd.readouterr().err.splitlines()
    assert re.match(told, message)


SCRIPT = """
import os, sys
from torch import distributed
from torch.utils.data import DataLoader
from unit.distributed import launched

pipe = os.open(sys.argv[1], os.O_WRONLY)
loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
assert sum(map(int, loader)) == 6  # its worker has the pipe as well
distributed.barrier()
os.write(pipe, b"here\\n")
if distributed.get_rank() == 1:
    launched.hold_the_interpreter()
os.write(pipe, b"ready\\n")
launched.hang()
"""


@contextmanager
def hanging(folder, pipe):
    """Context manager with a launcher whose process 1 never releases the interpreter.

    It is the leader of a process group. Its folder for temporary files has a short path, as
    the workers of a `DataLoader` need.
    """
    (folder / "script.py").write_text(SCRIPT)
    words = ["-m", "hocket", "launch", "--processes", "2", "script.py", pipe.name]
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder.parent), "PYTHONPATH": TEST_PATH},
        start_new_session=True,
    ) as launcher:
        try:
            assert sorted(pipe.rows(3)) == ["here", "here", "ready"]
            yield launcher
        finally:
            launcher.kill()


def test_no_process_or_folder_outlives_a_launcher_that_is_killed(folder, pipe):
    with hanging(folder, pipe) as launcher:
        assert list(folder.parent.glob("hocket-*"))
        launcher.kill()
        assert pipe.closes_within(60)
    wait_until(lambda: not list(folder.parent.glob("hocket-*")))


def test_no_process_outlives_a_launcher_that_is_killed_with_the_server(folder, pipe):
    with hanging(folder, pipe) as launcher:
        os.kill(launcher.pid, signal.SIGSTOP)  # else it would kill what the server has left
        for server in children_of(launcher.pid):
            os.kill(server, signal.SIGKILL)
        launcher.kill()
        assert pipe.closes_within(60), "a process has outlived both"
    for left in folder.parent.glob("hocket-*"):
        shutil.rmtree(left)


@pytest.mark.parametrize("size", [5, 100], ids=["cut short", "damaged"])
def test_a_request_that_cannot_be_read_ends_the_server_in_good_order(size, capfd, signals):
    server, (reading, _) = ForkServer(os.environ, []), signals
    assert server.wait_until_ready(reading) == 0
    request = struct.pack("!i", 100) + pickle.dumps("a request")[:5] + b"?" * 95
    os.write(server._control.fileno(), request[: 4 + size])
    server._control.close()
    assert server._process.wait(timeout=100) == 0
    assert ("UnpicklingError" in capfd.readouterr().err) == (size == 100)


# Invalid launches.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "processes is 0; use a whole number of at least 1"),
        ({"processes": 1, "threads": -1}, "threads is -1; use a whole number of at least 0"),
        ({"processes": 1, "grace_s": -1.0}, "grace_s is -1.0; use 0 or a number of seconds"),
        ({"processes": 1, "timeout_s": 0.0}, "timeout_s is 0.0; use a number of seconds"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(OptionError, match="cannot start processes") as refusal:
        launch(launched.add, **options)
    assert message in str(refusal.value)


def test_a_launch_outside_the_main_thread_is_refused():
    said = "called in the thread 'aside_0', which cannot handle Ctrl-C; call it in the"
    with (
        ThreadPoolExecutor(1, thread_name_prefix="aside") as pool,
        pytest.raises(OptionError, match=said),
    ):
        pool.submit(launch, launched.add, processes=1).result()


UNFIT = {
    "open files": ("resource.getrlimit", lambda _: (30, 4096), "have 30 files .* needs 56"),
    "no loopback": ("socket.if_nameindex", lambda: [(1, "eth0"), (2, "w")], "only eth0, w;"),
    "no interface": ("socket.if_nameindex", list, "only none;"),
    "loopback is down": ("fcntl.ioctl", lambda *_: bytes(32), "lo is down"),
}


@pytest.mark.parametrize(("name", "stand_in", "told"), UNFIT.values(), ids=UNFIT)
def test_a_machine_on_which_no_world_can_form_is_refused(monkeypatch, name, stand_in, told):
    monkeypatch.setattr(name, stand_in)
    with pytest.raises(OptionError, match=told):
        launch(launched.add, processes=2)


def test_work_that_no_other_process_can_import_is_refused(monkeypatch):
    with pytest.raises(OptionError, match="give a function of a module"):
        launch(lambda: 0, processes=1)
    monkeypatch.setattr(launched.add, "__module__", "__main__")
    with pytest.raises(OptionError, match=r"notebook that runs is no module.*%%writefile"):
        launch(launched.add, processes=1)


# Scripts.

REPORTING = """
import json, sys
import __main__, beside
from torch import distributed

row = [distributed.get_rank(), sys.argv, sys.path[0], __name__, __main__.__file__]
sys.stdout.write(json.dumps(row) + "\\n")
sys.exit(beside.code)
"""


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (["--processes", "2"], ["a", "--processes", "4", "--", "--config", "x", "--help"]),
        (["--processes=2", "--"], []),
    ],
)
def test_a_script_runs_as_with_python_and_gets_its_arguments(capfd, folder, before, words):
    script = folder / "apart" / "script.py"
    script.parent.mkdir()
    script.with_name("beside.py").write_text("code = 7")
    script.write_text(REPORTING)
    assert main(["launch", *before, str(script), *words]) == 7
    rows = sorted(json.loads(row) for row in capfd.readouterr().out.splitlines())
    name = str(script)
    assert rows == [
        [rank, [name, *words], str(script.parent), "__main__", name] for rank in (0, 1)
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--processes", "2", "none.py", "--recipe", "x"], "there is no script 'none.py'"),
        (["--processes", "2"], "requires an argument"),
        ([__file__, "--processes", "2"], f": hocket launch --processes 2 {__file__}"),
    ],
)
def test_a_script_that_cannot_run_is_refused(capsys, monkeypatch, words, message):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["launch", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_command_leaves_time_for_a_last_checkpoint(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.touch()
    given = {}
    monkeypatch.setattr(
        launch_module, "launch", lambda *words, **options: given.update(options)
    )
    main(["launch", "--processes", "2", str(script)])
    assert given["grace_s"] == launch_module.CHECKPOINT_GRACE_S == 30
