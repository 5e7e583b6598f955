"""`hocket train --resume`: a resumed run ends like one that never stopped."""

import contextlib
import dataclasses
import os
import shutil
import signal
from pathlib import Path

import pytest

from contract.small import bits
from hocket import Trainer
from hocket.checkpoint.directory import checkpoint_name
from hocket.cli.main import main
from hocket.runs.config import RunConfig
from hocket.runs.metrics_log import MetricsLog
from hocket.runs.train import train
from hocket.timeline import Recorder, Timeline
from hocket_lab.report.reported_run import read_run
from unit.cli.test_cli import read_json, read_metrics, read_weights

QUICK = ("--network", "mlp:hidden=[16,16]", "--epochs", "2", "--checkpoint-every", "10")
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a run that never stopped."""
    with contextlib.chdir(tmp_path_factory.mktemp("trained")):
        assert main(["train", *QUICK, "--run-dir", "whole"]) == 0
        return Path("whole").absolute()


@pytest.fixture
def whole(trained, here):
    """Return a copy of that folder of the test's own."""
    return Path(shutil.copytree(trained, "whole"))


def stop_at(monkeypatch, tick, number):
    """Send a signal to this process in a tick, once."""
    log_event, sent = MetricsLog.log_event, []

    def watch(logs, event, stage):
        log_event(logs, event, stage)
        if event.tick == tick and not sent:
            sent.append(tick)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(MetricsLog, "log_event", watch)


def read_results(folder):
    """Return the weights, and all metrics without their times."""
    rows = [{**row, "seconds": 0} for row in read_metrics(folder)]
    return bits(read_weights(folder)), rows


def read_summary(folder):
    return read_json(folder / "summary.json")


def checkpoints(folder):
    return sorted(place.name for place in (folder / "checkpoints").iterdir())


def go_on(folder):
    """Train in the folder of a run as a launch that is restarted does."""
    run = RunConfig.read(folder / "run.json")
    train(dataclasses.replace(run, run_dir=folder), resume=True)


@pytest.mark.parametrize(
    ("by", "left"), [("the user", 1), ("torchrun", 1), ("a launch", 0)], ids=str
)
def test_a_run_that_died_goes_on_from_its_last_checkpoint(call, whole, monkeypatch, by, left):
    """Rows that it wrote after the checkpoint are written again."""
    died = Path(shutil.copytree(whole, "died"))
    for name in checkpoints(whole)[left:]:
        shutil.rmtree(died / "checkpoints" / name)
    for name in ("network.pt", "summary.json"):
        (died / name).unlink()
    if by == "the user":
        assert call("train", "--resume", died)[0] == 0
    elif by == "torchrun":
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        assert call("train", *QUICK, "--run-dir", died)[0] == 0
    else:
        go_on(died)
    assert read_results(died) == read_results(whole)
    assert checkpoints(died) == checkpoints(whole)
    assert [len(read_summary(folder)["epochs"]) for folder in (whole, died)] == [2, 2]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["ctrl-c", "sigterm", "closed terminal"],
)
def test_a_signal_leaves_a_checkpoint_of_its_tick(call, whole, monkeypatch, number, code):
    stop_at(monkeypatch, 17, number)
    ended, _, told = call("train", *QUICK, "--run-dir", "stopped")
    assert ended == code
    assert "interrupted: stopped in epoch 1 of 2; the weights reached are saved" in told
    assert "resume with: hocket train --resume stopped" in told
    assert checkpoints(Path("stopped")) == [checkpoint_name(10, 0), checkpoint_name(18, 0)]
    summary = read_summary(Path("stopped"))
    assert (summary["state"], summary["signal"]) == ("interrupted", number)
    shares = [s["busy"] + s["communication"] + s["waiting"] for s in summary["stages"]]
    assert 0 < sum(shares) <= 1  # of the epoch that it has not completed
    assert call("train", "--resume", "stopped")[0] == 0
    assert read_results(Path("stopped")) == read_results(whole)


def test_ctrl_c_before_a_training_is_told(call, monkeypatch):
    monkeypatch.setattr("hocket.runs.start.train", lambda *_, **__: os.kill(os.getpid(), 2))
    assert call("train") == (130, "", "interrupted\n")


def test_the_command_to_resume_is_quoted_and_names_a_network_of_ones_own(call, monkeypatch):
    Path("nets.py").write_text("from hocket.zoo import mlp as build\n")
    stop_at(monkeypatch, 17, signal.SIGINT)
    words = ("--network", "nets.py:build", "--run-dir", "my run")
    told = call("train", *QUICK[2:], *words)[2]
    assert "resume with: hocket train --resume 'my run' --network nets.py:build\n" in told


@pytest.mark.parametrize("length", [("--epochs", 2), ("--updates", 46)])
def test_the_bar_of_a_resumed_run_begins_where_it_stopped(call, monkeypatch, length):
    words = ("--network", "mlp:hidden=[16,16]", "--checkpoint-every", 10, *length)
    stop_at(monkeypatch, 30, signal.SIGINT)
    assert call("train", *words, "--run-dir", "stopped")[0] == 130
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    told = call("train", "--resume", "stopped")[2]
    assert "46/46" in told
    assert " 0/46" not in told


@pytest.mark.filterwarnings("default")
def test_a_timeline_goes_on_with_every_action_once_and_a_damaged_one_begins_again(
    call, monkeypatch
):
    words = (*QUICK, "--record-timeline", "--run-dir", "stopped")
    stop_at(monkeypatch, 17, signal.SIGINT)
    assert call("train", *words)[0] == 130
    shutil.copytree("stopped", "damaged")
    before = Timeline.read(Path("stopped/timeline.json"))
    assert call("train", "--resume", "stopped")[0] == 0
    whole = Timeline.read(Path("stopped/timeline.json"))
    assert whole.before_tick(18).spans == before.spans
    done = [(s.stage, s.kind, s.batch) for s in whole.spans if s.kind in "FBU"]
    assert sorted(done) == sorted(
        (stage, kind, batch) for stage in (0, 1) for kind in "FBU" for batch in range(2 * 23)
    )
    assert [s.start_s for s in whole.spans] == sorted(s.start_s for s in whole.spans)
    Path("damaged/timeline.json").write_text("{")
    code, _, told = call("train", "--resume", "damaged")
    assert code == 0
    assert "it is not JSON" in told
    assert "; the timeline begins here" in told
    assert Timeline.read(Path("damaged/timeline.json")).spans[0].tick == 18


def test_a_resumed_run_has_its_own_choices_and_no_fewer_epochs_than_it_has_done(refused, whole):
    before = (whole / "run.json").read_text(), (whole / "summary.json").read_text()
    told = refused("train", "--resume", "whole", "--epochs", "1")
    assert "the training has done 2 epochs, and is to have 1" in told
    assert ((whole / "run.json").read_text(), (whole / "summary.json").read_text()) == before
    for given in ("--config", "--run-dir", "--recipe"):
        value = whole / "run.json" if given == "--config" else "fdg-cifar"
        told = refused("train", "--resume", whole, given, value)
        assert f"a resumed run has its own folder and choices; drop {given}" in told


def test_a_resumed_run_is_unfinished_until_it_has_ended_and_has_its_own_shares_of_time(
    call, whole, monkeypatch
):
    seen = set()
    log_event = MetricsLog.log_event

    def look(log, event, stage):
        log_event(log, event, stage)
        seen.add(read_run(whole).state)

    monkeypatch.setattr(MetricsLog, "log_event", look)
    monkeypatch.setattr(Recorder, "seconds", {"F": 1.0})
    assert call("train", "--resume", whole, "--epochs", 3)[0] == 0
    assert seen == {"unfinished"}
    assert read_run(whole).state == "finished"
    rows = [row["number"] for row in read_results(whole)[1] if row["kind"] == "epoch"]
    assert rows == [0, 1, 2]
    assert read_json(whole / "run.json")["epochs"] == 3
    summary = read_summary(whole)
    trained_s = [1 / stage["busy"] for stage in summary["stages"]]
    assert trained_s == pytest.approx([summary["epochs"][-1]["seconds"]] * 2)
    assert call("train", "--resume", whole)[0] == 0  # nothing is left to do
    assert {stage["busy"] for stage in read_summary(whole)["stages"]} == {None}


@pytest.mark.filterwarnings("default")
def test_in_other_stages_it_says_what_is_lost_and_there_is_no_staleness_at_first(call, whole):
    code, _, told = call("train", "--resume", whole, "--stages", 3)
    assert code == 0
    assert "warning: the 2 stages of the checkpoint are not those of this training" in told
    summary = read_summary(whole)
    assert [stage["staleness"] for stage in summary["stages"]] == [None] * 3
    assert len(summary["epochs"]) == 2


def test_weights_in_another_format_replace_those_before(call):
    pytest.importorskip("safetensors")
    assert call("train", *QUICK, "--keep-best", "train_loss", "--run-dir", "run")[0] == 0
    assert len([*Path("run").glob("network*.pt")]) == 2
    words = ("--resume", "run", "--epochs", 3, "--weights-format", "safetensors")
    assert call("train", *words)[0] == 0
    names = {file.name for file in Path("run").glob("network*")}
    assert names == {"network.safetensors", "network-best.safetensors"}


@pytest.mark.parametrize(
    ("evaluates", "said"),
    [(False, "; the weights reached are saved"), (True, ", in its last evaluation")],
    ids=["before the evaluation", "in it"],
)
def test_ctrl_c_after_the_last_epoch_leaves_a_summary(call, monkeypatch, evaluates, said):
    log_epoch, evaluate = MetricsLog.log_epoch, Trainer.evaluate

    def stop(trainer, batches):
        signal.raise_signal(signal.SIGINT)
        return evaluate(trainer, batches)

    def log_and_stop(log, epoch):
        log_epoch(log, epoch)
        if epoch.number == 1:
            monkeypatch.setattr(Trainer, "evaluate", stop)
            if not evaluates:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(MetricsLog, "log_epoch", log_and_stop)
    code, _, told = call("train", *QUICK, "--average-weights", 0.5, "--run-dir", "run")
    assert code == 130
    assert f"interrupted: stopped after the last epoch{said}" in told
    summary = read_summary(Path("run"))
    assert (summary["averaged"], len(summary["epochs"])) == (None, 2)
    assert Path("run/network-averaged.pt").exists()


class Launched:
    """Launches that end with these codes, in which processes are restarted alone if allowed."""

    def __init__(self, *codes, rejoins=False):
        self.codes, self.rejoins, self.calls = list(codes), rejoins, []

    def __call__(self, work, config, resume, report, show_warning, **options):
        self.calls.append((config.run_dir, resume, options["grace_s"]))
        if self.rejoins:
            options["rejoin_restarts"].take()
        else:
            assert options["rejoin_restarts"] is None, "stages that keep step"
        return self.codes.pop(0)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ((0,), []),
        ((137, 0), ["a process was killed by SIGKILL"]),
        ((137, 139, 137), [f"a process was killed by {n}" for n in ("SIGKILL", "SIGSEGV")]),
        ((75, 0), ["a process hung"]),
        ((72, 0), ["the folder in which processes meet was deleted, or its disk is full"]),
        ((76, 69, 0), ["a packet was lost or damaged", "a process was gone"]),
        ((137, 2), ["a process was killed by SIGKILL"]),
        ((143,), []),
        ((1,), []),
        ((74,), []),
    ],
)
def test_a_job_that_lost_something_is_started_again(call, monkeypatch, codes, said):
    check_restarts(call, monkeypatch, codes, said)


def check_restarts(call, monkeypatch, codes, said, most=2, *, rejoins=False):
    """Check a job whose launches end with these codes, and what is said between them."""
    launched = Launched(*codes, rejoins=rejoins)
    monkeypatch.setattr("hocket.runs.start.launch", launched)
    words = ("--processes", 2, "--checkpoint-every", 5, "--max-restarts", most)
    code, _, told = call("train", "--method", "dgl-async" if rejoins else "fdg", *words)
    assert (code, launched.codes) == (codes[-1], [])
    assert len({folder for folder, _, _ in launched.calls}) == 1
    assert [(again, grace) for _, again, grace in launched.calls] == [
        (number > 0, 30.0) for number in range(len(codes))
    ]
    each = 2 if rejoins else 1
    assert told.splitlines() == [
        f"warning: {words}; starting the whole job again from its last checkpoint, "
        f"{each * number} of at most {most} times"
        for number, words in enumerate(said, 1)
    ]


def test_what_torchrun_starts_again_leaves_the_folder_of_another_run(call, whole, monkeypatch):
    shutil.copytree(whole, "other")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    code, _, told = call("train", *QUICK, "--seed", 7, "--run-dir", "other")
    assert code != 0
    assert "the run folder 'other' has another run; name another with --run-dir" in told
    assert read_results(Path("other")) == read_results(whole)


TORCHRUN = {"WORLD_SIZE": "2"}
RESTARTED = {"TORCHELASTIC_MAX_RESTARTS": "3"}
RESTARTS = ("--max-restarts", 1, "--checkpoint-every", 5)


@pytest.mark.parametrize(
    ("variables", "words", "said"),
    [
        ({}, ["--resume", "nowhere" * 64], "nowhere' is no run folder, as it has no run.json"),
        ({}, ["--processes", 0], "processes is 0, but 2 stages x 1 replicas want 2"),
        ({}, ["--max-restarts", -1], "max_restarts is -1"),
        ({}, ["--max-restarts", 1, "--checkpoint-every", 5], "max_restarts is 1"),
        ({}, ["--max-restarts", 1, "--processes", 2], "max_restarts is 1"),
        ({}, [*RESTARTS, "--processes", 3], "processes is 3, but 2 stages x 1 replicas want 2"),
        ({}, [*RESTARTS, "--processes", 2, "--method", "fgd"], "unknown method 'fgd'"),
        (RESTARTED, ["--checkpoint-every", 5], "(--max-restarts 3)"),
        (RESTARTED, ["--run-dir", "there"], "give --run-dir and --checkpoint-every, or"),
        (TORCHRUN | {"RANK": "x"}, [], "the environment variable RANK is 'x'"),
        ({"WORLD_SIZE": ""}, [], "the environment variable WORLD_SIZE is ''"),
        (TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": ""}, [], "TORCHELASTIC_RESTART_COUNT is ''"),
        (TORCHRUN | {"RANK": "2"}, [], "RANK has to be at least 0, and below WORLD_SIZE"),
        (TORCHRUN | {"RANK": "-1"}, [], "RANK has to be at least 0, and below WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, [], "RANK has to be at least 0, and below WORLD_SIZE"),
        (TORCHRUN, [], "the processes cannot meet (RANK=(not set), WORLD_SIZE=2, MASTER_ADDR="),
    ],
)
def test_what_cannot_be_started_is_refused(call, monkeypatch, variables, words, said):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, _, told = call("train", *words)
    assert code != 0
    assert said in told
    assert not Path("runs").exists()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("most", "launches"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)])
def test_starts_of_one_process_and_of_the_whole_job_are_counted_together(
    call, monkeypatch, most, launches
):
    said = ["a process was killed by SIGKILL"] * (launches - 1)
    check_restarts(call, monkeypatch, [137] * launches, said, most, rejoins=True)


def test_stages_that_run_freely_begin_anew_if_a_part_is_missing_and_want_their_processes(call):
    words = ("--method", "dgl-async", "--checkpoint-every", "10", "--epochs", "1")
    assert call("train", *words, "--run-dir", "whole")[0] == 0
    shutil.copytree("whole", "died")
    shutil.move("died/checkpoints", "checkpoints")
    shutil.move("checkpoints", "died/checkpoints/stage0")
    Path("died/network.pt").unlink()
    assert "cannot resume 'died': it has no" in call("train", "--resume", "died")[2]
    go_on(Path("died"))
    assert read_results(Path("died")) == read_results(Path("whole"))
    assert checkpoints(Path("died")) == checkpoints(Path("whole"))
    # Parts of two processes are not resumed in one.
    shutil.move("died/checkpoints", "checkpoints")
    for part in ("stage0", "stage1"):
        shutil.copytree("checkpoints", f"died/checkpoints/{part}")
    code, _, told = call("train", "--resume", "died")
    assert code == 2
    assert "each of 2 stages that ran freely, in a process of its own" in told
    assert "give --processes 2, or start as many processes" in told
