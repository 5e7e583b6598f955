"""After a failure in one process all end soon, one reports the cause, and none is left."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from end_to_end import failing
from end_to_end.torchrun import TEST_PATH, run_under_torchrun
from hocket.cli.main import main
from hocket.distributed.launching.launch import launch
from hocket.errors import HangError, PeerLostError, TransitError
from unit.distributed.launched import NamedPipe, forked_processes, socket_addresses

PROC = Path("/proc/net/tcp").exists()


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = sorted(socket_addresses(listening=True)) if PROC else []
    yield
    assert not list(tmp_path.glob("hocket-*"))
    if PROC:
        assert sorted(socket_addresses(listening=True)) == before
        assert forked_processes() == []


@pytest.fixture
def pipe(tmp_path):
    """A named pipe that every process opens; at the end all of them have ended."""
    pipe = NamedPipe(tmp_path)
    yield pipe
    assert pipe.closes_within(60), "a process is left"
    os.close(pipe.end)


@pytest.fixture
def start(capfd, pipe):
    """Function that launches work: its exit code, and the error output of all processes."""

    def start(work, *arguments, processes=3, grace_s=60.0):
        # Processes that end on their own may be slow on a busy machine.
        options = {"processes": processes, "grace_s": grace_s}
        code = launch(failing.holding, pipe.name, work, *arguments, **options)
        return code, capfd.readouterr().err

    return start


@pytest.fixture
def failure(start):
    """Function that launches work that fails, and returns the error output of all processes."""

    def run(work, *arguments, code=1, **options):
        codes = code if isinstance(code, tuple) else (code,)
        found, err = start(work, *arguments, **options)
        assert found in codes
        assert err.count("Traceback (most recent call last)") == 1, err
        assert err.count(" failed:\n") == 1, err
        assert "PeerFailedError" not in err
        return err

    return run


# Exceptions.


OWN = "ValueError: the user's own\n"
NAN = "hocket.errors.NonFiniteError: the output became nan; "
DONE = "Error: an exit with code 0 within a training, at "
REPLICAS = {"stages": 2, "replicas": 2}
# Work and its fault, the process that fails, what it says, and how that ends.
FAILURES = [
    (failing.fail_in_training, [failing.user_error, 0, {}], 0, OWN, "batch 4, tick 4: F0.4)\n"),
    (failing.fail_in_training, [failing.user_error, 2, {}], 2, OWN, "batch 4, tick 6: F2.4)\n"),
    (failing.fail_in_training, [failing.not_a_number, 2, {}], 2, NAN, "tick 6: F2.4)\n"),
    *(
        (failing.fail_in_training, [failing.user_error, rank, REPLICAS], rank, OWN, end)
        for rank, end in ((0, "batch 4, tick 4: F0.4)\n"), (3, "batch 4, tick 5: F1.4)\n"))
    ),
    (failing.fail_in_training, [failing.leave_as_if_done, 1, {}], 1, DONE, "another code\n"),
    (failing.fail_in_evaluation, [failing.user_error, 0], 0, OWN, OWN),
    (failing.fail_in_evaluation, [failing.user_error, 2], 2, OWN, OWN),
    (failing.fail_in_the_data, [], 0, "in broken", "OSError: the disk is gone\n"),
    (failing.fail_before_the_trainer, [failing.user_error, 1], 1, "in user_error", OWN),
    (failing.fail_between_trainings, [failing.user_error, 1], 1, OWN, OWN),
    (failing.fail_after_another_trainer, [failing.user_error, 1], 1, OWN, OWN),
]


@pytest.mark.parametrize(
    ("work", "fault", "rank", "said", "end"),
    FAILURES,
    ids=[f"{row[0].__name__} {row[2]}{' of 4' * (REPLICAS in row[1])}" for row in FAILURES],
)
def test_an_exception_is_reported_once_with_its_place(failure, work, fault, rank, said, end):
    processes = 4 if REPLICAS in fault else 3
    err = failure(work, *fault, processes=processes)
    assert err.startswith(f"process {rank} of {processes} failed:\n")
    assert said in err
    assert err.endswith(end)
    # All ended on their own, and only the failed process reported an error.
    assert not any(words in err for words in ("hung", "reset by peer", "Broken pipe"))


@pytest.mark.parametrize("stage", [0, 2])
def test_an_exception_in_an_asynchronous_training_ends_all_processes(failure, stage):
    err = failure(failing.fail_asynchronously, failing.user_error, stage)
    assert err.startswith(f"process {stage} of 3 failed:\n")
    assert re.search(rf"\(stage {stage}, batch \d+, tick \d+: F{stage}\.\d+\)\n$", err)


def test_a_damaged_packet_in_an_asynchronous_training_ends_all_processes(failure):
    """Although no process waits for that packet."""
    err = failure(failing.damage_asynchronously, code=TransitError.exit_code)
    assert re.search(r"stage [12], from stage [01]: activation \d+ was damaged", err)


@pytest.mark.parametrize("starved", [False, True])
def test_an_interrupt_of_the_first_stage_stops_an_asynchronous_training(start, starved):
    assert start(failing.interrupt_asynchronously, starved)[0] == 0


@pytest.mark.parametrize(
    ("work", "options"),
    [(failing.fail_in_training, [{}]), (failing.fail_between_trainings, [])],
)
def test_an_exit_code_of_the_user_is_kept(start, work, options):
    code, err = start(work, failing.leave, 1, *options)
    assert code == 3
    assert re.fullmatch(r"hocket: process 1 of 3 exited with code 3 at \S+\n", err)


def test_a_call_in_only_one_process_is_explained(failure):
    codes = PeerLostError.exit_code, HangError.exit_code
    err = failure(failing.evaluate_in_one_process, code=codes)
    # The processes that have left wait for the one that evaluates as long as it waits for them;
    # either side may time out first.
    expected = r"stage [12] is (gone, and|not there any more:) it has already left the training"
    assert re.search(expected, err)
    assert "hung" not in err


@pytest.mark.skipif(not PROC, reason="reads /proc of Linux")
def test_another_training_may_begin_after_all_have_caught_a_failure(start):
    """All its sockets are on loopback, and none fails while another ends much later."""
    assert start(failing.catch_and_train_again, 1) == (0, "")


@pytest.mark.parametrize("replica", [0, 1])
def test_an_interrupt_of_one_replica_stops_all_in_the_middle_of_an_epoch(start, replica):
    assert start(failing.interrupt_an_endless_epoch, replica, processes=4) == (0, "")


# Deaths.


def test_a_process_that_is_killed_is_named(failure):
    err = failure(failing.fail_in_training, failing.kill, 1, {}, code=137)
    assert "hocket: process 1 was ended by SIGKILL, perhaps by the kernel" in err
    assert "hocket.errors.PeerLostError: the connection to stage 1 is gone" in err
    assert "hung" not in err


def test_a_process_that_is_killed_before_its_trainer_is_not_waited_for(start):
    code, err = start(failing.fail_before_the_trainer, failing.kill, 1)
    assert code == 137
    (message,) = err.splitlines()
    assert message.startswith("hocket: process 1 was ended by SIGKILL, perhaps by the kernel")


# Hangs.


def test_a_process_that_is_stopped_is_named_and_killed(failure):
    code = HangError.exit_code
    err = failure(failing.fail_in_training, failing.stop, 1, {"timeout_s": 3}, code=code)
    assert "hocket.errors.HangError: stage " in err
    assert re.search(r" waited \d+ s for ", err)
    assert "; stage 1 does not answer: it is stopped, or cut off; if nothing hangs" in err
    assert "hocket: process 1 hung: it did not answer the others, and was killed" in err
    assert err.count("hung") == 1


STOPPED_WHILE_CONNECTING = (
    r"stage [01] waited \d+ s for all processes to connect; stage 2 does not answer: it is stop"
)


def test_a_process_that_is_stopped_while_groups_form_is_named_and_killed(failure):
    code = HangError.exit_code
    err = failure(failing.stop_while_connecting, 2, code=code)
    assert re.search(STOPPED_WHILE_CONNECTING, err)
    assert "hocket: process 2 hung: it did not answer the others, and was killed" in err


def test_a_process_that_is_stopped_while_groups_form_over_a_tcp_store_is_named(pipe):
    """Without a launcher; the connection to the store is one for all threads of a process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, failing.__file__, "stop_while_connecting", "2", pipe.name]
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3"}
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | names | {"RANK": rank, "PYTHONPATH": TEST_PATH},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "012"
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in processes[:2]]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for err in errors:  # of one that finds out, and of one that is told
        assert re.search(STOPPED_WHILE_CONNECTING, err)
    assert HangError.exit_code in [process.returncode for process in processes]


def test_a_process_that_sleeps_is_named_with_its_activity(failure):
    code = HangError.exit_code
    fault = failing.sleep, 1, {"timeout_s": 3}
    err = failure(failing.fail_in_training, *fault, code=code, grace_s=8.0)
    assert "; stage 1 has been executing F1.4 in tick 5 for " in err
    assert "hocket: process 1 hung: it still ran 8 s after process" in err
    assert err.count("hung") == 1


# Started by torchrun.


def test_under_torchrun_an_exception_is_reported_once(tmp_path, pipe):
    code, err = run_under_torchrun(tmp_path, failing.__file__, "user_error", "1", pipe.name)
    assert code == 1
    processes_err, _, torchrun_err = err.partition("torch/distributed/elastic")
    assert processes_err.count("Traceback (most recent call last)") == 1
    assert "ValueError: the user's own\n(stage 1, batch 4, tick 5: F1.4)\n" in processes_err
    # torchrun ends the other process once the first one is gone, perhaps before that process
    # has reported why it ends as well.
    reported = (
        "hocket.errors.PeerFailedError: stage 1 failed: ValueError: the user's own\n" in err
    )
    assert reported or "closing signal SIGTERM" in torchrun_err
    assert "terminate called" not in err
    assert "reset by peer" not in err
    assert torchrun_err


def test_under_torchrun_a_script_may_destroy_groups_and_train_again(tmp_path, pipe):
    words = failing.__file__, "destroy_the_groups", "-1", pipe.name
    assert run_under_torchrun(tmp_path, *words) == (0, "")


# hocket train.


@pytest.fixture
def run(capfd):
    """Function that runs ``hocket train`` on two stages; returns the code and the output."""

    def train(*words):
        options = ["--stages", "2", "--threads", "1", "--data", "synthetic"]
        code = main(["train", *options, *words])
        return code, *capfd.readouterr()

    return train


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--processes 2 --run-dir .", "the run folder '.' exists already"),
        ("--processes 2 --network mlp:depth=3", "cannot build network 'mlp':.* 'depth'"),
    ],
)
def test_what_is_wrong_in_all_processes_is_refused_once(run, words, said):
    code, _, err = run(*words.split())
    assert code == 2
    assert re.match(f"(?s)error: {said}", err)
    assert err.count("error: ") == 1


def test_a_training_that_fails_is_reported_once_and_each_stage_is_saved(run, tmp_path):
    out = tmp_path / "run"
    code, _, err = run("--processes", "2", "--run-dir", str(out), "--optimizer", "SGD:lr=1e30")
    assert code == 2
    assert err.count("error: ") == 1
    assert "became nan" in err or "became inf" in err
    assert f"the weights reached are in {out}\n" in err
    assert "present weights of its own stage only" not in err  # each saves just these
    summary = json.loads((out / "summary.json").read_text())
    assert summary["state"] == "failed"
    assert "became" in summary["message"]
    for part in ("network.stage0.pt", "network.stage1.pt"):
        assert torch.load(out / part)


@pytest.mark.parametrize(
    ("method", "said"), [("fdg", "stopped in epoch "), ("dgl-async", "stopped; the weights")]
)
def test_ctrl_c_ends_a_training_in_good_order(run, tmp_path, method, said):
    out = tmp_path / "run"
    files = [out / "metrics.jsonl", out / "metrics.stage1.jsonl"]
    ended = threading.Event()

    def interrupt():
        while not all(file.exists() and file.read_text() for file in files):
            if ended.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    words = ("--processes", "2", "--run-dir", str(out), "--epochs", "100000")
    code, _, err = run(*words, "--method", method, "--checkpoint-every", "1000")
    ended.set()
    thread.join()
    assert code == 130
    assert err.count(f"interrupted: {said}") == 1
    assert err.count(f"resume with: hocket train --resume {out} --processes 2\n") == 1
    assert "Traceback" not in err
    assert json.loads((out / "summary.json").read_text())["state"] == "interrupted"
    assert torch.load(out / "network.pt")
    assert not list(out.glob("network.stage*"))


STOPPED = '''
import os, signal
from pathlib import Path
from torch import nn

class Stops(nn.Module):
    """Interrupts the first process, once, in the evaluation behind the training."""

    due = os.environ["RANK"] == "0"

    def forward(self, x):
        if self.due and Path("run/network-averaged.pt").exists():
            self.due = False
            os.kill(os.getpid(), signal.SIGINT)
        return x

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), Stops(), nn.ReLU(), nn.Linear(8, 10))
'''


def test_ctrl_c_in_the_last_evaluation_ends_all_processes_with_a_summary(
    run, tmp_path, monkeypatch
):
    """Each other one waits for the next batch of that evaluation."""
    monkeypatch.chdir(tmp_path)
    Path("stopped.py").write_text(STOPPED)
    words = ("--network", "stopped.py:network", "--plan", "3")
    words += ("--average-weights", "0.5", "--epochs", "1", "--run-dir", "run")
    code, _, err = run("--processes", "2", *words, "--batch-size", "60")
    assert code == 130, err
    assert "interrupted: stopped after the last epoch, in its last evaluation" in err
    assert json.loads(Path("run/summary.json").read_text())["state"] == "interrupted"


def read_rows(folder):
    rows = []
    for file in folder.glob("metrics*.jsonl"):
        for text in file.read_text().splitlines():
            row = json.loads(text)
            row.pop("seconds", None)
            rows.append(json.dumps(row, sort_keys=True))
    return sorted(rows)


@pytest.mark.filterwarnings("default:stage 0, with layer 'hidden0', has")
def test_several_processes_write_the_same_run_folder_as_one(run, tmp_path):
    alone, apart = tmp_path / "alone", tmp_path / "apart"
    uneven = ("--network", "mlp:hidden=[2048,8]", "--optimizer", "SGD:lr=0.001")
    words = (*uneven, "--epochs", "3", "--run-dir")
    code, _, said = run(*words, str(alone))
    assert code == 0
    code, out, err = run(*words, str(apart), "--processes", "2")
    assert code == 0
    assert err == said.replace("processes: 1", "processes: 2")
    first_words = re.findall("^[a-z]+", err, re.MULTILINE)
    assert sorted(first_words) == ["epoch", "epoch", "epoch", "processes", "warning"]
    assert out.count("finished") == 1
    assert (apart / "network.pt").read_bytes() == (alone / "network.pt").read_bytes()
    assert read_rows(apart) == read_rows(alone)
    assert {file.name for file in apart.iterdir()} == {
        *(file.name for file in alone.iterdir()),
        "metrics.stage1.jsonl",
    }
