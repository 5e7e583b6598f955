"""Worlds of processes: they form, end with the right code, and leave nothing behind."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import hocket
from hocket.cli.main import main
from hocket.distributed.launch import PEER_FAILED, launch
from hocket.distributed.supervisor import Supervisor
from hocket.errors import OptionError
from unit.distributed import launched

SOURCE = str(Path(hocket.__file__).parents[1])
PROC = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux' /proc")
KERNEL = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for a signal")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where temporary folders are made, so that one left behind is found."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert not list(tmp_path.glob("hocket-*"))


@pytest.fixture(autouse=True)
def _signals_as_before():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    # Where a shell started the tests in the background, or nohup did, they would be ignored.
    usual = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]
    for number, handler in zip(numbers, usual, strict=True):
        signal.signal(number, handler)
    yield
    assert [signal.getsignal(number) for number in numbers] == usual
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture
def line(folder):
    line = launched.Line(folder)
    yield line
    os.close(line.end)


# What a process finds.


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_processes_form_a_world(processes):
    assert launch(launched.add, processes=processes) == 0


def test_one_that_ends_at_once_does_not_break_the_others_beginning():
    assert {launch(launched.give, 0, processes=8) for _ in range(5)} == {0}


def reports(folder, **options):
    assert launch(launched.report, str(folder), **options) == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_each_process_knows_its_place(folder, monkeypatch):
    # The server that forks the processes has the variables of the first launch.
    launch(launched.give, 0, processes=1)
    monkeypatch.setenv("SET_AFTER_AN_EARLIER_LAUNCH", "yes")
    found = reports(folder, processes=2)
    for rank, own in enumerate(found):
        variables = own["environment"]
        assert variables["RANK"] == variables["LOCAL_RANK"] == str(rank)
        assert variables["WORLD_SIZE"] == variables["LOCAL_WORLD_SIZE"] == "2"
        assert variables["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
        assert variables["SET_AFTER_AN_EARLIER_LAUNCH"] == "yes"
        assert own["leads a session"]
        assert own["ignores Ctrl-C"] == (rank != 0)
        assert own["blocked"] == []
        assert own["modes"] == ["0o700"]
    assert "RANK" not in os.environ


def test_the_cores_are_shared_out(folder, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert [own["threads"] for own in reports(folder, processes=2)] == [3, 3]
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert [own["threads"] for own in reports(folder, processes=2)] == [2, 2]
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert [own["threads"] for own in reports(folder, processes=2)] == [1, 1]


def test_more_threads_than_cores_are_warned_of(folder, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert [own["threads"] for own in reports(folder, processes=2, threads=2)] == [2, 2]
    with pytest.warns(UserWarning, match="2 processes of 3 threads want 6 cores and 4 can be"):
        assert [own["threads"] for own in reports(folder, processes=2, threads=3)] == [3, 3]


@PROC
def test_threads_that_wait_do_not_spin(folder, monkeypatch):
    own, _ = reports(folder, processes=2)
    assert own["environment"]["OMP_WAIT_POLICY"] == "passive"
    # It is read as OpenMP is loaded, which is in the server.
    begun_with = Path(f"/proc/{own['server']}/environ").read_bytes().split(b"\0")
    assert b"OMP_WAIT_POLICY=passive" in begun_with
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    own, _ = reports(folder, processes=2)
    assert own["environment"]["OMP_WAIT_POLICY"] == "active"


@pytest.mark.parametrize("text", ["something", "the other"])
def test_what_processes_print_goes_where_the_launcher_prints_now(capfd, text):
    assert launch(launched.speak, text, processes=2) == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == [f"0 says {text}", f"1 says {text}"]
    assert sorted(err.splitlines()) == [f"0 warns of {text}", f"1 warns of {text}"]


@PROC
def test_nobody_outside_the_machine_can_reach_a_process(capfd):
    assert launch(launched.listeners, processes=2) == 0, capfd.readouterr().out


# How a process ends.


@pytest.mark.parametrize(
    ("work", "argument", "code", "said"),
    [
        (launched.give, 0, 0, ""),
        (launched.give, 3, 3, ""),
        (launched.give, 256 + 3, 3, ""),
        (launched.leave, None, 0, ""),
        (launched.leave, 4, 4, ""),
        (launched.leave, "no more", 1, "no more\n"),
        (launched.leave_at_once, 6, 6, ""),
        (launched.fail, KeyboardInterrupt, 130, ""),
        (launched.fail, launched.Witness, PEER_FAILED, ""),
        (launched.give, 255, 255, "hocket: process 0 ended with code 255; where that is not"),
    ],
)
def test_the_code_is_kept(capfd, work, argument, code, said):
    assert launch(work, argument, processes=1) == code
    err = capfd.readouterr().err
    assert err.startswith(said)
    assert bool(err) == bool(said)


@pytest.mark.parametrize(("kind", "code"), [(ValueError, 1), (launched.Hung, 75)])
def test_an_exception_is_told_once(capfd, kind, code):
    assert launch(launched.fail, kind, processes=1) == code
    err = capfd.readouterr().err
    assert err.startswith("process 0 of 1 failed:\nTraceback (most recent call last):\n")
    assert err.count("Traceback") == 1
    assert err.endswith("the reason\n")


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGKILL, 137, "hocket: process 1 was ended by SIGKILL, perhaps by the kernel"),
        (signal.SIGSEGV, 139, "hocket: process 1 was ended by SIGSEGV\n"),
    ],
)
def test_a_death_by_signal_is_told(capfd, number, code, said):
    assert launch(launched.die, int(number), processes=2) == code
    assert said in capfd.readouterr().err


def test_a_death_by_signal_is_taken_for_the_cause_of_what_came_with_it(tmp_path):
    with Supervisor(grace_s=0, meeting=tmp_path) as world:
        for code in (1, -signal.SIGSEGV):
            world.start(Ended(code))
        bell, ringer = os.pipe()
        assert world.until_all_ended(bell) == 128 + signal.SIGSEGV
    os.close(bell)
    os.close(ringer)


class Ended:
    """A process of which the launcher hears only once it has ended."""

    pid = None

    def __init__(self, code):
        self.exitcode = code
        self.sentinel, other = os.pipe()
        os.close(other)

    def start(self):
        pass

    def join(self):
        pass

    def close(self):
        os.close(self.sentinel)


def test_a_thread_left_behind_does_not_hold_the_process():
    assert launch(launched.leave_a_thread_behind, processes=2) == 0


# Who failed first, and what becomes of the others.


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        (PEER_FAILED, 5, 5),
        (5, PEER_FAILED, 5),
        (PEER_FAILED, PEER_FAILED, PEER_FAILED),
        (3, 5, 3),
        (0, 5, 5),
    ],
)
def test_the_first_that_failed_on_its_own_gives_the_code(first, then, code):
    assert launch(launched.fail_apart, first, then, processes=2) == code


def test_what_hangs_is_killed_after_the_grace_and_named(capfd, line):
    begin = time.monotonic()
    code = launch(launched.hang_after_witness, line.name, processes=2, grace_s=0.2)
    assert time.monotonic() - begin < 30
    assert code == PEER_FAILED
    assert capfd.readouterr().err == (
        "hocket: process 1 hung: it still ran 0.2 s after process 0 ended with code 74, and "
        "was killed\n"
    )
    assert line.closes_within(2), "what it had started outlived it"


def test_without_the_folder_in_which_they_meet_all_are_killed(capfd, folder):
    assert launch(launched.lose_the_meeting, str(folder), processes=2) == 72
    (told,) = capfd.readouterr().err.splitlines()
    assert re.match(r"hocket: '.*/seats', through which the processes meet, was taken", told)


# Signals that reach the launcher.


def test_ctrl_c_goes_to_the_first_process_which_ends_the_work(capfd):
    assert launch(launched.interrupted_in_good_order, os.getpid(), processes=2) == 130
    assert capfd.readouterr().err == ""


def test_a_second_ctrl_c_kills(capfd):
    assert launch(launched.interrupted_twice, os.getpid(), processes=2, grace_s=60) == 130
    assert capfd.readouterr().err == ""


@PROC
def test_ctrl_c_kills_where_the_first_process_has_ended():
    work = launched.interrupted_without_a_leader
    assert launch(work, os.getpid(), processes=2) == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_is_passed_on_to_all(capfd, number):
    code = launch(launched.told, os.getpid(), int(number), processes=2, grace_s=60)
    assert code == 128 + number
    assert capfd.readouterr().err == ""


def test_processes_may_save_before_they_end(folder):
    work = launched.told_and_saves
    assert launch(work, os.getpid(), str(folder), processes=2, grace_s=60) == 143
    assert sorted(file.name for file in folder.glob("saved-*")) == ["saved-0", "saved-1"]


def test_who_does_not_hear_is_killed_after_the_grace(capfd):
    assert launch(launched.told_and_deaf, os.getpid(), processes=2, grace_s=0.2) == 143
    told = "hung: it still ran 0.2 s after SIGTERM came, and was killed"
    assert capfd.readouterr().err == f"hocket: process 0 {told}\nhocket: process 1 {told}\n"


def test_what_the_caller_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        work = launched.sends_and_goes_on
        assert launch(work, os.getpid(), int(signal.SIGHUP), processes=2) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_signals_are_none_of_its_business():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append("USR1"))
    try:
        work = launched.sends_and_goes_on
        assert launch(work, os.getpid(), int(signal.SIGUSR1), processes=1) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == ["USR1"]


# Nobody is left behind.


@KERNEL
def test_the_next_launch_starts_the_server_that_was_killed(capfd, line):
    assert launch(launched.kill_the_server, line.name, processes=2) == 255
    assert line.closes_within(2), "a process outlived the server"
    assert "the process that had forked it was killed" in capfd.readouterr().err
    assert launch(launched.add, processes=2) == 0


def test_a_thread_ends_the_process_where_the_kernel_cannot(line):
    assert launch(launched.give, 0, processes=1) == 0  # the server is one for other tests too
    context = multiprocessing.get_context("forkserver")
    launcher = context.Process(target=launched.launcher_that_dies, args=(line.name,))
    launcher.start()
    launcher.join()
    assert launcher.exitcode == -signal.SIGKILL
    launcher.close()
    assert line.closes_within(2)


SCRIPT = """
import os, signal, sys, time
from torch import distributed
from unit.distributed import launched

line = os.open(sys.argv[2], os.O_WRONLY)
distributed.barrier()
os.write(line, b"here\\n")
if sys.argv[1:2] == ["--hang"] and distributed.get_rank() == 1:
    launched.hold_the_interpreter()
def save(*_):
    time.sleep(0.5)  # is something that could be cut short
    os.write(line, b"saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
os.write(line, b"ready\\n")
launched.hang()
"""
CONSOLE = f"""
import sys
sys.path[:0] = [{SOURCE!r}, {str(Path(__file__).parents[2])!r}]
from hocket.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


@contextmanager
def started(folder, *words, **variables):
    """A launcher of its own, in a folder with a script; it leads a group."""
    (folder / "script.py").write_text(SCRIPT)
    (folder / "console.py").write_text(CONSOLE)
    outside = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with (
        open(folder / "err", "w") as err,
        subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=outside | {"TMPDIR": str(folder)} | variables,
            stderr=err,
            start_new_session=True,
        ) as launcher,
    ):
        try:
            yield launcher
        finally:
            launcher.kill()


@KERNEL
def test_no_process_outlives_a_launcher_that_is_killed(folder, line):
    words = ("-m", "hocket", "run", "--processes", "2", "script.py", "--hang", line.name)
    path = os.pathsep.join([SOURCE, str(Path(__file__).parents[2])])
    with started(folder, *words, PYTHONPATH=path) as launcher:
        # Process 1 is in C code that never lets the interpreter go on.
        assert sorted(line.rows(3)) == ["here", "here", "ready"]
        launcher.kill()
        assert line.closes_within(2)
    # Nobody was left to remove it.
    for left in folder.glob("hocket-*"):
        shutil.rmtree(left)


def test_a_signal_to_the_whole_group_leaves_time_to_save_and_imports_are_made_once(
    folder, line
):
    words = ("console.py", "run", "--processes", "2", "script.py", "--save", line.name)
    with started(folder, *words, PYTHONPROFILEIMPORTTIME="1") as launcher:
        assert sorted(line.rows(4)) == ["here", "here", "ready", "ready"]
        os.killpg(launcher.pid, signal.SIGTERM)
        assert line.rows(2) == ["saved", "saved"]
        assert line.closes_within(10)
        assert launcher.wait(timeout=20) == 143
    rows = (folder / "err").read_text().splitlines()
    imported = [row.split("|")[-1].strip() for row in rows]
    for module in ("torch", "hocket.distributed.worker_main", "hocket.cli.main"):
        assert imported.count(module) == 2, "in the launcher and in the server, not in workers"


# What cannot be started.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"processes": 0}, "processes is 0; use at least 1"),
        ({"processes": 1, "threads": -1}, "threads is -1; use 0 to share the cores out"),
        ({"processes": 1, "grace_s": -1.0}, "grace_s is -1.0; use 0 or a number of seconds"),
        ({"processes": 1, "timeout_s": 0.0}, "timeout_s is 0.0; use a number of seconds"),
    ],
)
def test_options_out_of_range_are_refused(options, said):
    with pytest.raises(OptionError, match="cannot start processes") as refusal:
        launch(launched.add, **options)
    assert said in str(refusal.value)


def test_a_launch_outside_the_main_thread_is_refused():
    refusals = []

    def attempt():
        try:
            launch(launched.add, processes=1)
        except OptionError as error:
            refusals.append(str(error))

    thread = threading.Thread(target=attempt, name="aside")
    thread.start()
    thread.join()
    (said,) = refusals
    assert "called in the thread 'aside', which cannot handle Ctrl-C; call it in the" in said


def test_work_that_no_other_process_can_import_is_refused():
    with pytest.raises(OptionError, match="give a function of a module, and arguments"):
        launch(lambda: 0, processes=1)


@pytest.mark.parametrize(("names", "said"), [(["eth0", "wlan0"], "eth0, wlan0"), ([], "none")])
def test_a_machine_without_loopback_is_refused(monkeypatch, names, said):
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names)))
    with pytest.raises(OptionError, match=f"lo or lo0, and there are only {said}; bring it up"):
        launch(launched.add, processes=1)


# Scripts.

REPORTING = """
import json, sys
import __main__, beside
from torch import distributed

found = [distributed.get_rank(), sys.argv, sys.path[0], __name__, __main__.__file__]
sys.stdout.write(json.dumps(found) + "\\n")
sys.exit(beside.code)
"""


@pytest.fixture
def script(folder):
    (folder / "apart").mkdir()
    (folder / "apart" / "beside.py").write_text("code = 7")
    (folder / "apart" / "script.py").write_text(REPORTING)
    return folder / "apart" / "script.py"


@pytest.mark.parametrize("before", [["--processes", "2"], ["--processes=2", "--"]])
@pytest.mark.parametrize("words", [[], ["a", "--processes", "4", "--", "--run", "x", "--help"]])
def test_a_script_runs_as_if_alone_and_has_what_follows_it(capfd, script, before, words):
    assert main(["run", *before, str(script), *words]) == 7
    rows = sorted(json.loads(row) for row in capfd.readouterr().out.splitlines())
    name = str(script)
    assert rows == [
        [rank, [name, *words], str(script.parent), "__main__", name] for rank in (0, 1)
    ]


def test_a_script_that_comes_to_its_end_went_well(script):
    script.write_text("")
    assert main(["run", "--processes", "1", "--threads", "1", str(script)]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--processes", "2", "none.py", "--recipe", "x"],
            "there is no script 'none.py'; name",
        ),
        (["--processes", "0", __file__], "processes is 0; use at least 1"),
        (["--processes", "2"], "requires an argument"),
        ([__file__, "--processes", "2"], "--processes"),
    ],
)
def test_a_script_that_cannot_run_is_refused(capsys, monkeypatch, words, said):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["run", *words]) == 2
    assert said in capsys.readouterr().err
