"""`hocket train --resume`: a resumed run ends like one that never stopped."""

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from hocket import Trainer
from hocket.checkpoint.directory import checkpoint_name
from hocket.runs.config import RunConfig
from hocket.runs.metrics_log import MetricsLog
from hocket.runs.train import train
from hocket.timeline import Recorder, Timeline, Totals
from hocket_lab.report.reported_run import read_run

QUICK = ("--network", "mlp:hidden=[16,16]", "--epochs", "2", "--checkpoint-every", "10")


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def whole(call):
    """Return the folder of a run that never stopped."""
    assert call("train", *QUICK, "--run-dir", "whole")[0] == 0
    return Path("whole")


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
    network = torch.load(folder / "network.pt", weights_only=True)
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    return str(network), [{**row, "seconds": 0} for row in rows]


def read_summary(folder):
    return json.loads((folder / "summary.json").read_text())


def stage_time(summary):
    """Return the sum of all shares of time of all stages."""
    return sum(s["busy"] + s["communication"] + s["waiting"] for s in summary["stages"])


def checkpoints(folder):
    return sorted(place.name for place in (folder / "checkpoints").iterdir())


def test_a_run_that_died_goes_on_from_its_last_checkpoint(call, whole):
    """Rows that it wrote after the checkpoint are written again."""
    shutil.copytree(whole, "died")
    for name in checkpoints(whole)[1:]:
        shutil.rmtree(Path("died/checkpoints") / name)
    for name in ("network.pt", "summary.json"):
        Path("died", name).unlink()
    assert call("train", "--resume", "died")[0] == 0
    assert read_results(Path("died")) == read_results(whole)
    assert checkpoints(Path("died")) == checkpoints(whole)
    summaries = [json.loads((f / "summary.json").read_text()) for f in (whole, Path("died"))]
    assert [len(summary["epochs"]) for summary in summaries] == [2, 2]


def test_a_signal_after_the_last_epoch_says_so(call, monkeypatch):
    log_epoch = MetricsLog.log_epoch

    def press(log, epoch):
        log_epoch(log, epoch)
        if epoch.number == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(MetricsLog, "log_epoch", press)
    ended, _, told = call("train", *QUICK, "--run-dir", "last")
    assert ended == 130
    assert "interrupted: stopped after the last epoch; the weights reached are saved" in told


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
    summary = json.loads(Path("stopped/summary.json").read_text())
    assert (summary["state"], summary["signal"]) == ("interrupted", number)
    assert 0 < stage_time(summary) <= 1  # of the epoch that it has not completed
    assert call("train", "--resume", "stopped")[0] == 0
    assert read_results(Path("stopped")) == read_results(whole)


def test_the_command_to_resume_is_quoted(call, monkeypatch):
    stop_at(monkeypatch, 17, signal.SIGINT)
    told = call("train", *QUICK, "--run-dir", "my run")[2]
    assert "resume with: hocket train --resume 'my run'" in told


def test_the_command_to_resume_names_a_network_of_ones_own(call, monkeypatch):
    Path("nets.py").write_text(
        "import hocket\n\n\ndef build(in_features, num_classes):\n"
        "    options = dict(in_features=in_features, num_classes=num_classes)\n"
        "    return hocket.zoo.mlp(hidden=[16, 16], **options)\n"
    )
    stop_at(monkeypatch, 17, signal.SIGINT)
    words = ("--network", "nets.py:build", "--run-dir", "own")
    told = call("train", *QUICK[2:], *words)[2]
    assert "resume with: hocket train --resume own --network nets.py:build\n" in told


@pytest.mark.parametrize("length", [("--epochs", 2), ("--updates", 46)])
def test_the_bar_of_a_resumed_run_begins_where_it_stopped(call, monkeypatch, length):
    words = ("--network", "mlp:hidden=[16,16]", "--checkpoint-every", 10, *length)
    stop_at(monkeypatch, 30, signal.SIGINT)
    assert call("train", *words, "--run-dir", "stopped")[0] == 130
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    told = call("train", "--resume", "stopped")[2]
    assert "46/46" in told
    assert " 0/46" not in told


def test_a_timeline_goes_on_with_every_action_once(call, monkeypatch):
    words = (*QUICK, "--record-timeline", "--run-dir", "stopped")
    stop_at(monkeypatch, 17, signal.SIGINT)
    assert call("train", *words)[0] == 130
    before = Timeline.read(Path("stopped/timeline.json"))
    assert call("train", "--resume", "stopped")[0] == 0
    whole = Timeline.read(Path("stopped/timeline.json"))
    assert whole.before_tick(18).spans == before.spans
    done = [(s.stage, s.kind, s.batch) for s in whole.spans if s.kind in "FBU"]
    assert sorted(done) == sorted(
        (stage, kind, batch) for stage in (0, 1) for kind in "FBU" for batch in range(2 * 23)
    )
    assert [s.start_s for s in whole.spans] == sorted(s.start_s for s in whole.spans)


@pytest.mark.filterwarnings("default")
def test_a_timeline_that_is_damaged_begins_again(call, monkeypatch):
    stop_at(monkeypatch, 17, signal.SIGINT)
    assert call("train", *QUICK, "--record-timeline", "--run-dir", "stopped")[0] == 130
    Path("stopped/timeline.json").write_text("{")
    code, _, told = call("train", "--resume", "stopped")
    assert code == 0
    assert "it is not JSON" in told
    assert "; the timeline begins here" in told
    assert Timeline.read(Path("stopped/timeline.json")).spans[0].tick == 18


def test_a_run_may_be_given_more_epochs(call, whole):
    assert call("train", "--resume", whole, "--epochs", 3)[0] == 0
    rows = [row["number"] for row in read_results(whole)[1] if row["kind"] == "epoch"]
    assert rows == [0, 1, 2]
    assert json.loads((whole / "run.json").read_text())["epochs"] == 3


def test_a_run_cannot_be_given_fewer_epochs_than_it_has_done(call, whole):
    before = (whole / "run.json").read_text(), (whole / "summary.json").read_text()
    code, _, told = call("train", "--resume", "whole", "--epochs", "1")
    assert code == 2
    assert "the training has done 2 epochs, and is to have 1; give epochs (--epochs on" in told
    assert ((whole / "run.json").read_text(), (whole / "summary.json").read_text()) == before


def test_a_run_cannot_be_given_fewer_updates_than_it_has_done(call, monkeypatch):
    words = ("--network", "mlp:hidden=[16,16]", "--checkpoint-every", 10, "--updates", 46)
    stop_at(monkeypatch, 17, signal.SIGINT)
    assert call("train", *words, "--run-dir", "stopped")[0] == 130
    before = Path("stopped/summary.json").read_text()
    code, _, told = call("train", "--resume", "stopped", "--updates", 12)
    assert code == 2
    assert "the training has done 18 updates, and is to have 12; give updates" in told
    assert Path("stopped/summary.json").read_text() == before


def test_the_shares_of_time_are_those_since_a_resume(call, whole, monkeypatch):
    monkeypatch.setattr(Recorder, "totals", Totals(busy_s=1.0, communication_s=0, waiting_s=0))
    assert call("train", "--resume", whole, "--epochs", 3)[0] == 0
    summary = read_summary(whole)
    trained_s = [1 / stage["busy"] for stage in summary["stages"]]
    assert trained_s == pytest.approx([summary["epochs"][-1]["seconds"]] * 2)
    assert call("train", "--resume", whole)[0] == 0  # nothing is left to do
    assert {stage["busy"] for stage in read_summary(whole)["stages"]} == {None}


def test_a_resumed_run_is_unfinished_until_it_has_ended(call, whole, monkeypatch):
    seen = set()
    log_event = MetricsLog.log_event

    def look(log, event, stage):
        log_event(log, event, stage)
        seen.add(read_run(whole).state)

    monkeypatch.setattr(MetricsLog, "log_event", look)
    assert call("train", "--resume", whole, "--epochs", 3)[0] == 0
    assert seen == {"unfinished"}
    assert read_run(whole).state == "finished"


@pytest.mark.filterwarnings("default")
def test_in_other_stages_it_says_what_is_lost(call, whole):
    code, _, told = call("train", "--resume", whole, "--epochs", 3, "--stages", 3)
    assert code == 0
    assert "warning: the 2 stages of the checkpoint are not those of this training" in told


@pytest.mark.filterwarnings("default")
def test_in_other_stages_there_is_no_staleness_before_the_first_epoch(call, whole):
    assert call("train", "--resume", whole, "--stages", 3)[0] == 0
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


def test_ctrl_c_in_the_last_evaluation_leaves_a_summary(call, monkeypatch):
    log_epoch, evaluate = MetricsLog.log_epoch, Trainer.evaluate

    def stop(trainer, batches):
        signal.raise_signal(signal.SIGINT)
        return evaluate(trainer, batches)

    def log_and_stop(log, epoch):
        log_epoch(log, epoch)
        if epoch.number == 1:
            monkeypatch.setattr(Trainer, "evaluate", stop)

    monkeypatch.setattr(MetricsLog, "log_epoch", log_and_stop)
    code, _, told = call("train", *QUICK, "--average-weights", 0.5, "--run-dir", "run")
    assert code == 130
    assert "interrupted: stopped after the last epoch, in its last evaluation" in told
    summary = read_summary(Path("run"))
    assert (summary["averaged"], len(summary["epochs"])) == (None, 2)
    assert Path("run/network-averaged.pt").exists()


def test_without_checkpoints_there_is_nothing_to_go_on_from(call):
    assert call("train", *QUICK[:4], "--run-dir", "plain")[0] == 0
    code, _, told = call("train", "--resume", "plain")
    assert code == 2
    assert "cannot resume 'plain': it has no checkpoint of all stages" in told


@pytest.mark.parametrize("given", ["--config", "--run-dir", "--recipe"])
def test_a_resumed_run_has_its_own_choices(call, whole, given):
    value = {"--config": whole / "run.json", "--run-dir": "there", "--recipe": "fdg-cifar"}[
        given
    ]
    code, _, told = call("train", "--resume", whole, given, value)
    assert code == 2
    assert f"a resumed run has its own folder and choices; drop {given}" in told


def test_choices_that_would_be_passed_over_are_refused(call, whole):
    words = ("--optimizer", "SGD:lr=0.1", "--batch-size", 32, "--epochs", 3)
    code, _, told = call("train", "--resume", whole, *words)
    assert code == 2
    assert "optimizer is 'SGD:lr=0.1', and was 'SGD:lr=0.05,momentum=0.9" in told
    assert "batch_size is 32, and was 64; begin a new run for that" in told
    assert "epochs" not in told


def test_a_folder_that_is_no_run_is_refused(call):
    code, _, told = call("train", "--resume", "nowhere")
    assert code == 2
    assert "'nowhere' is no run folder, as it has no run.json; give --resume the" in told


@pytest.mark.parametrize(
    "words",
    [
        ("--max-restarts", -1),
        ("--max-restarts", 1, "--checkpoint-every", 5),
        ("--max-restarts", 1, "--processes", 2),
    ],
)
def test_restarts_need_processes_and_checkpoints(call, words):
    code, _, told = call("train", *words)
    assert code == 2
    assert f"max_restarts is {words[1]}; give a number from 0 on" in told


class Launched:
    """Launches that end with these codes; records their arguments."""

    def __init__(self, *codes):
        self.codes = list(codes)
        self.calls = []

    def __call__(self, work, config, resume, report, **options):
        self.calls.append((config.run_dir, resume, options["grace_s"]))
        self.rejoin_restarts = options["rejoin_restarts"]
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
    launched = Launched(*codes)
    monkeypatch.setattr("hocket.runs.start.launch", launched)
    words = ("--processes", 2, "--checkpoint-every", 5, "--max-restarts", 2)
    code, _, told = call("train", *words)
    assert code == codes[-1]
    folders = {folder for folder, _, _ in launched.calls}
    assert len(folders) == 1
    assert [(again, grace) for _, again, grace in launched.calls] == [
        (number > 0, 30.0) for number in range(len(codes))
    ]
    assert told.splitlines() == [
        f"warning: {words}; starting the whole job again from its last checkpoint, {number} of "
        "at most 2 times"
        for number, words in enumerate(said, 1)
    ]


@pytest.mark.parametrize("missing", ["--run-dir", "--checkpoint-every"])
def test_under_torchrun_a_run_that_may_be_started_again_needs_a_place(
    call, monkeypatch, missing
):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    given = {"--run-dir": "there", "--checkpoint-every": 5}
    del given[missing]
    code, _, told = call("train", *(word for pair in given.items() for word in pair))
    assert code == 2
    assert "may restart this training (--max-restarts 3), which then needs its" in told
    assert "give --run-dir and --checkpoint-every, or --max-restarts 0" in told


def test_what_torchrun_starts_again_goes_on(call, whole, monkeypatch):
    shutil.copytree(whole, "died")
    shutil.rmtree(sorted(Path("died/checkpoints").iterdir())[-1])
    Path("died/network.pt").unlink()
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert call("train", *QUICK, "--run-dir", "died")[0] == 0
    assert read_results(Path("died")) == read_results(whole)


def test_what_torchrun_starts_again_leaves_the_folder_of_another_run(call, whole, monkeypatch):
    shutil.copytree(whole, "other")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    code, _, told = call("train", *QUICK, "--seed", 7, "--run-dir", "other")
    assert code != 0
    assert "the run folder 'other' has another run; name another with --run-dir" in told
    assert read_results(Path("other")) == read_results(whole)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "x"), ("WORLD_SIZE", ""), ("TORCHELASTIC_RESTART_COUNT", "")],
)
def test_variables_of_torchrun_that_are_no_numbers_are_told(call, monkeypatch, name, value):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, value)
    code, _, told = call("train", *QUICK)
    assert code != 0
    assert f"the environment variable {name} is {value!r}; set it to a whole number" in told


def test_processes_that_cannot_meet_say_what_is_missing(call, monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, told = call("train", *QUICK)
    assert code != 0
    assert "the processes cannot meet (RANK=(not set), WORLD_SIZE=2, MASTER_ADDR=" in told


@pytest.mark.parametrize("processes", [0, -1])
def test_a_number_of_processes_is_at_least_one(call, processes):
    code, _, told = call("train", *QUICK, "--processes", processes)
    assert code == 2
    assert f"processes is {processes}; use at least 1" in told


class LaunchedWithRejoin(Launched):
    """Launches in each of which one process is restarted alone, if that is allowed."""

    def __call__(self, work, config, resume, report, **options):
        code = super().__call__(work, config, resume, report, **options)
        options["rejoin_restarts"].take()
        return code


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("most", "launches"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)])
def test_starts_of_one_process_and_of_the_whole_job_are_counted_together(
    call, monkeypatch, most, launches
):
    launched = LaunchedWithRejoin(*[137] * launches)
    monkeypatch.setattr("hocket.runs.start.launch", launched)
    words = ("--processes", 2, "--checkpoint-every", 5, "--max-restarts", most)
    code, _, told = call("train", "--method", "dgl-async", *words)
    assert code == 137
    assert launched.codes == []
    assert [again for _, again, _ in launched.calls] == [n > 0 for n in range(launches)]
    assert told.splitlines() == [
        "warning: a process was killed by SIGKILL; starting the whole job again from its last "
        f"checkpoint, {2 * number} of at most {most} times"
        for number in range(1, launches)
    ]


def test_nobody_is_started_again_alone_where_stages_keep_step(call, monkeypatch):
    launched = Launched(0)
    monkeypatch.setattr("hocket.runs.start.launch", launched)
    words = ("--processes", 2, "--checkpoint-every", 5, "--max-restarts", 2)
    assert call("train", *words)[0] == 0
    assert launched.rejoin_restarts is None


def test_a_job_that_lost_a_process_before_its_first_checkpoint_begins_anew(call, whole):
    shutil.copytree(whole, "died")
    shutil.rmtree("died/checkpoints")
    Path("died/network.pt").unlink()
    run = RunConfig.read(Path("died/run.json"))
    train(dataclasses.replace(run, run_dir=Path("died")), resume=True)
    assert read_results(Path("died")) == read_results(whole)


def test_stages_that_run_freely_begin_anew_where_one_has_left_no_part(call):
    words = ("--method", "dgl-async", "--checkpoint-every", "10", "--epochs", "1")
    assert call("train", *words, "--run-dir", "whole")[0] == 0
    shutil.copytree("whole", "died")
    shutil.move("died/checkpoints", "checkpoints")
    shutil.move("checkpoints", "died/checkpoints/stage0")
    Path("died/network.pt").unlink()
    assert "cannot resume 'died': it has no" in call("train", "--resume", "died")[2]
    run = RunConfig.read(Path("died/run.json"))
    train(dataclasses.replace(run, run_dir=Path("died")), resume=True)
    assert read_results(Path("died")) == read_results(Path("whole"))
    assert checkpoints(Path("died")) == checkpoints(Path("whole"))


def test_stages_that_ran_freely_in_processes_are_not_resumed_in_one(call):
    words = ("--method", "dgl-async", "--checkpoint-every", "10", "--epochs", "1")
    assert call("train", *words, "--stages", 2, "--run-dir", "apart")[0] == 0
    shutil.move("apart/checkpoints", "checkpoints")
    for part in ("stage0", "stage1"):  # as two processes leave them
        shutil.copytree("checkpoints", f"apart/checkpoints/{part}")
    code, _, told = call("train", "--resume", "apart")
    assert code == 2
    assert "each of 2 stages that ran freely, in a process of its own" in told
    assert "give --processes 2, or start as many processes" in told
