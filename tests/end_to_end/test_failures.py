"""Whatever goes wrong in one process, all end soon, one of them says why, none is left."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

import hocket
from end_to_end import failing
from hocket.cli.main import main
from hocket.distributed.launch import launch
from hocket.errors import HangError, PeerLostError, TransitError
from unit.distributed.launched import Line, forked, listening

SOURCE = str(Path(hocket.__file__).parents[1])
PROC = Path("/proc/net/tcp").exists()
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = sorted(listening(os.getpid())) if PROC else []
    yield
    assert not list(tmp_path.glob("hocket-*"))
    assert multiprocessing.active_children() == []
    if PROC:
        assert sorted(listening(os.getpid())) == before
        assert forked() == []


@pytest.fixture
def line(tmp_path):
    """What every process holds open, whoever has started it; at the end all have ended."""
    line = Line(tmp_path)
    yield line
    assert line.closes_within(10), "a process is left"
    os.close(line.end)


@pytest.fixture
def failure(capfd, line):
    """Launch work in several processes; what was said of its failure, by one of them."""

    def launched(work, *arguments, code=1, processes=3, told=1):
        codes = code if isinstance(code, tuple) else (code,)
        assert launch(work, line.name, *arguments, processes=processes) in codes
        err = capfd.readouterr().err
        assert err.count("Traceback (most recent call last)") == told, err
        assert err.count(" failed:\n") == told, err
        assert "PeerFailedError" not in err
        return err

    return launched


def ends_well(err):
    """All ended on their own, and only who failed said something."""
    return "hung" not in err and "reset by peer" not in err and "Broken pipe" not in err


# An exception.


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_an_exception_of_the_users_is_told_once_with_its_place(failure, stage):
    err = failure(failing.in_training, failing.user_error, stage, {})
    assert err.startswith(f"process {stage} of 3 failed:\n")
    assert err.endswith(
        f"ValueError: the user's own\n(stage {stage}, batch 4, tick {4 + stage}: F{stage}.4)\n"
    )
    assert "in user_error" in err
    assert ends_well(err)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_an_exception_where_stages_run_freely_ends_all_of_them(failure, stage):
    err = failure(failing.freely, failing.user_error, stage)
    assert err.startswith(f"process {stage} of 3 failed:\n")
    assert re.search(rf"\(stage {stage}, batch \d+, tick \d+: F{stage}\.\d+\)\n$", err)


def test_a_killed_process_ends_all_where_stages_run_freely(capfd, line):
    assert launch(failing.freely, line.name, failing.kill, 1, processes=3) == 137
    assert "process 1 was ended by SIGKILL" in capfd.readouterr().err


def test_a_damaged_packet_ends_all_where_stages_run_freely(failure):
    """Though nobody waits for that one."""
    err = failure(failing.damaged_freely, code=TransitError.exit_code)
    told = r"stage [12], from stage [01]: activation \d+ was damaged in transit"
    assert re.search(told, err)


def test_stages_that_run_freely_stop_where_the_first_is_asked_to(line):
    assert launch(failing.interrupted_freely, line.name, processes=3) == 0


def test_a_loss_that_is_not_a_number_names_its_place(failure):
    err = failure(failing.in_training, failing.not_a_number, 2, {})
    assert "hocket.errors.NonFiniteError: the output became nan" in err
    assert err.endswith("(stage 2, batch 4, tick 6: F2.4)\n")
    assert ends_well(err)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_an_exception_while_evaluating_is_told_once(failure, stage):
    err = failure(failing.in_evaluation, failing.user_error, stage)
    assert err.startswith(f"process {stage} of 3 failed:\n")
    assert err.endswith("ValueError: the user's own\n")
    assert ends_well(err)


def test_an_exception_while_reading_the_data_is_told_once(failure):
    err = failure(failing.in_the_data)
    assert err.startswith("process 0 of 3 failed:\n")
    assert err.endswith("OSError: the disk is gone\n")
    assert ends_well(err)


@pytest.mark.parametrize("rank", [0, 3])
def test_an_exception_in_a_replica_is_told_once(failure, rank):
    options = {"stages": 2, "replicas": 2}
    err = failure(failing.in_training, failing.user_error, rank, options, processes=4)
    assert err.startswith(f"process {rank} of 4 failed:\n")
    assert f"ValueError: the user's own\n(stage {rank // 2}, batch 4, tick " in err
    assert ends_well(err)


@pytest.mark.parametrize(
    ("work", "arguments"),
    [
        (failing.before_the_trainer, ()),
        (failing.between_trainings, (failing.user_error,)),
        (failing.after_another_trainer, ()),
    ],
)
def test_an_exception_outside_of_a_training_reaches_the_others(failure, work, arguments):
    err = failure(work, *arguments, 1)
    assert err.startswith("process 1 of 3 failed:\n")
    assert err.endswith("ValueError: the user's own\n")
    assert ends_well(err)


def test_a_code_of_the_users_is_kept(failure):
    err = failure(failing.in_training, failing.leave, 1, {}, code=3, told=0)
    assert err == ""
    err = failure(failing.between_trainings, failing.leave, 1, code=3, told=0)
    assert err == ""


def test_too_few_processes_are_refused_once(failure):
    err = failure(failing.in_training, None, None, {}, processes=2)
    assert err.endswith(
        "hocket.errors.WorldError: there are 2 processes, but 3 stages need 3; start that "
        "many, or ask for other stages\n"
    )
    assert ends_well(err)


def test_what_only_one_process_calls_is_explained(failure):
    codes = PeerLostError.exit_code, HangError.exit_code
    err = failure(failing.only_one_evaluates, code=codes)
    # Who has left waits as long for the one that evaluates as that one waits for it; which of
    # them is missed first is up to what has been sent by then.
    told = r"stage [12] is (gone|not there any more), and it has left in good order; fit"
    assert re.search(told, err)
    assert "hung" not in err


def test_after_a_failure_that_all_have_caught_another_training_may_begin(line, capfd):
    assert launch(failing.caught_and_tried_again, line.name, processes=3) == 0
    assert capfd.readouterr().err == ""


def test_one_that_ends_much_later_holds_nobody(line, capfd):
    start = time.monotonic()
    assert launch(failing.ends_much_later, line.name, 1, processes=3) == 0
    assert time.monotonic() - start < 30
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("replica", [0, 1])
def test_replicas_end_together_in_the_middle_of_an_epoch(line, capfd, replica):
    work = failing.interrupted_in_an_endless_epoch
    assert launch(work, line.name, replica, processes=4) == 0
    assert capfd.readouterr().err == ""


# A death.


def test_a_process_that_is_killed_is_named(failure):
    err = failure(failing.in_training, failing.kill, 1, {}, code=137)
    assert "hocket: process 1 was ended by SIGKILL, perhaps by the kernel" in err
    assert (
        "hocket.errors.PeerLostError: the connection to stage 1 is gone, and it did not say "
        "why: it was killed, or its machine or network failed (stage "
    ) in err
    assert "hung" not in err


# A hang.


def test_a_process_that_is_stopped_is_named_and_killed(failure):
    err = failure(failing.in_training, failing.stop, 1, {}, code=HangError.exit_code)
    assert "hocket.errors.HangError: stage " in err
    assert " waited 3 s for " in err
    assert "; stage 1 does not answer: it is stopped, or cut off; if that is no" in err
    assert "hocket: process 1 hung: it still ran 5 s after process" in err
    assert err.count("hung") == 1


def test_a_process_that_sleeps_is_named_with_what_it_was_doing(failure):
    err = failure(failing.in_training, failing.sleep, 1, {}, code=HangError.exit_code)
    assert "; stage 1 has been executing F1.4 in tick 5 for " in err
    assert "hocket: process 1 hung: it still ran 5 s after process" in err
    assert err.count("hung") == 1


def test_a_process_that_does_not_come_is_named(failure):
    err = failure(failing.does_not_come, 1, code=HangError.exit_code)
    assert "waited 3 s for all to build their Trainer; stage 1 did not come so far" in err


# Who may connect.


@pytest.mark.skipif(not PROC, reason="reads the tables of Linux")
def test_all_sockets_of_a_training_are_on_loopback(line, capfd):
    code = launch(failing.without_accident, line.name, processes=3)
    assert code == 0, capfd.readouterr().out


# Started by torchrun.


def torchrun(folder, *words):
    """The exit code and what went to standard error."""
    path = os.pathsep.join([SOURCE, str(Path(__file__).parents[1])])
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(Path(failing.__file__)), *words),
        ],
        check=False,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    return ended.returncode, ended.stderr


def test_under_torchrun_an_exception_is_told_once(tmp_path, line):
    code, err = torchrun(tmp_path, "user_error", "1", line.name)
    assert code == 1
    own, _, torchs = err.partition("torch/distributed/elastic")
    assert own.count("Traceback (most recent call last)") == 1
    assert "ValueError: the user's own\n(stage 1, batch 4, tick 5: F1.4)\n" in own
    # torchrun ends the other process as soon as it sees the first one gone, which may be before
    # that has said why it ends as well.
    heard = "hocket.errors.PeerFailedError: stage 1 failed: ValueError: the user's own\n" in err
    assert heard or "closing signal SIGTERM" in torchs
    assert "terminate called" not in err
    assert "reset by peer" not in err
    assert torchs


def test_under_torchrun_a_script_may_destroy_its_groups(tmp_path, line):
    assert torchrun(tmp_path, "destroys the groups", "-1", line.name) == (0, "")


# hocket train.


@pytest.fixture
def run(capfd):
    """Run ``hocket train`` on two stages; its code and what it wrote."""

    def train(*words):
        fixed = ["--stages", "2", "--threads", "1", "--timeout-s", "5", "--data", "synthetic"]
        code = main(["train", *fixed, *words])
        return code, *capfd.readouterr()

    return train


@pytest.fixture(autouse=True)
def _ctrl_c_as_in_a_terminal():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_processes_that_do_not_fit_the_stages_are_refused(run):
    code, _, err = run("--processes", "3")
    assert code == 2
    assert err == (
        "error: processes is 3, but 2 stages x 1 replicas want 2; give --processes 2, or "
        "change --stages\n"
    )


def test_a_run_folder_that_exists_is_refused_once(run, tmp_path):
    code, _, err = run("--processes", "2", "--out", str(tmp_path))
    assert code == 2
    assert err.count("error: ") == 1
    assert err.startswith(f"error: the run folder '{tmp_path}' exists already; name another")


def test_an_option_that_is_wrong_in_all_processes_is_refused_once(run):
    code, _, err = run("--processes", "2", "--network", "mlp:depth=3")
    assert code == 2
    assert err.startswith("error: cannot build network 'mlp':\n  - unknown option 'depth'")
    assert err.count("error: ") == 1


def test_a_training_that_fails_is_told_once_and_each_stage_is_saved(run, tmp_path):
    out = tmp_path / "run"
    code, _, err = run("--processes", "2", "--out", str(out), "--optimizer", "SGD:lr=1e30")
    assert code == 2
    assert err.count("error: ") == 1
    assert "became nan" in err or "became inf" in err
    assert f"the weights reached are in {out}\n" in err
    summary = json.loads((out / "summary.json").read_text())
    assert summary["state"] == "failed"
    assert "became" in summary["message"]
    for part in ("network.stage0.pt", "network.stage1.pt"):
        assert torch.load(out / part)


def test_ctrl_c_ends_a_training_in_good_order(run, tmp_path):
    out = tmp_path / "run"
    files = [out / "metrics.jsonl", out / "metrics.stage1.jsonl"]

    def interrupt():
        while not all(file.exists() and file.read_text() for file in files):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    code, _, err = run("--processes", "2", "--out", str(out), "--epochs", "100000")
    thread.join()
    assert code == 130
    assert err.count("interrupted: stopped in epoch ") == 1
    assert "Traceback" not in err
    assert json.loads((out / "summary.json").read_text())["state"] == "interrupted"
    assert torch.load(out / "network.pt")
    assert not list(out.glob("network.stage*"))


def rows(folder):
    found = []
    for file in folder.glob("metrics*.jsonl"):
        for text in file.read_text().splitlines():
            row = json.loads(text)
            row.pop("seconds", None)
            found.append(json.dumps(row, sort_keys=True))
    return sorted(found)


def test_several_processes_leave_what_one_leaves(run, tmp_path):
    alone, apart = tmp_path / "alone", tmp_path / "apart"
    assert run("--epochs", "3", "--out", str(alone))[0] == 0
    code, out, err = run("--epochs", "3", "--out", str(apart), "--processes", "2")
    assert code == 0
    assert [row[:10] for row in err.splitlines()] == [f"epoch {n}/3:" for n in (1, 2, 3)]
    assert out.count("finished") == 1
    assert (apart / "network.pt").read_bytes() == (alone / "network.pt").read_bytes()
    assert rows(apart) == rows(alone)
    assert {file.name for file in apart.iterdir()} == {
        *(file.name for file in alone.iterdir()),
        "metrics.stage1.jsonl",
    }
