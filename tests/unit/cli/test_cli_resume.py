"""`hocket train --resume`: what is left is what a run that never stopped would have left."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from hocket.checkpoint.folder import name_of
from hocket.cli import main
from hocket.logs import Logs

QUICK = ("--network", "mlp:hidden=[16,16]", "--epochs", "2", "--checkpoint-every", "10")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working folder, and lines that are not wrapped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def call(capsys):
    """Runs the command line: exit code, and standard error."""

    def run(*words):
        code = main([str(word) for word in words])
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def whole(call):
    """The folder of a run that never stopped."""
    assert call("train", *QUICK, "--out", "whole")[0] == 0
    return Path("whole")


def stop_at(monkeypatch, tick, number):
    """Have a signal come in a tick, once."""
    own, sent = Logs.watch, []

    def watch(logs, event, stage):
        own(logs, event, stage)
        if event.tick == tick and not sent:
            sent.append(tick)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Logs, "watch", watch)


def left(folder):
    """The weights, and all metrics but the time that they took."""
    network = torch.load(folder / "network.pt", weights_only=True)
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    return str(network), [{**row, "seconds": 0} for row in rows]


def checkpoints(folder):
    return sorted(place.name for place in (folder / "checkpoints").iterdir())


def test_a_run_that_died_goes_on_from_its_last_checkpoint(call, whole):
    """What it had written after that is written anew."""
    shutil.copytree(whole, "died")
    for name in checkpoints(whole)[1:]:
        shutil.rmtree(Path("died/checkpoints") / name)
    for name in ("network.pt", "summary.json"):
        Path("died", name).unlink()
    assert call("train", "--resume", "died")[0] == 0
    assert left(Path("died")) == left(whole)
    assert checkpoints(Path("died")) == checkpoints(whole)
    summaries = [json.loads((f / "summary.json").read_text()) for f in (whole, Path("died"))]
    assert [len(summary["epochs"]) for summary in summaries] == [2, 2]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_signal_leaves_a_checkpoint_of_its_tick(call, whole, monkeypatch, number, code):
    stop_at(monkeypatch, 17, number)
    ended, told = call("train", *QUICK, "--out", "stopped")
    assert ended == code
    assert "interrupted: stopped in epoch 1 of 2; what was reached is saved" in told
    assert "go on with: hocket train --resume stopped" in told
    assert checkpoints(Path("stopped")) == [name_of(10, 0), name_of(18, 0)]
    summary = json.loads(Path("stopped/summary.json").read_text())
    assert (summary["state"], summary["signal"]) == ("interrupted", number)
    assert call("train", "--resume", "stopped")[0] == 0
    assert left(Path("stopped")) == left(whole)


def test_a_run_may_be_given_more_epochs(call, whole):
    assert call("train", "--resume", whole, "--epochs", 3)[0] == 0
    rows = [row["number"] for row in left(whole)[1] if row["kind"] == "epoch"]
    assert rows == [0, 1, 2]
    assert json.loads((whole / "run.json").read_text())["epochs"] == 3


@pytest.mark.filterwarnings("default")
def test_in_other_stages_it_says_what_is_lost(call, whole):
    code, told = call("train", "--resume", whole, "--epochs", 3, "--stages", 3)
    assert code == 0
    assert "warning: the checkpoint is of other stages" in told


def test_without_checkpoints_there_is_nothing_to_go_on_from(call):
    assert call("train", *QUICK[:4], "--out", "plain")[0] == 0
    code, told = call("train", "--resume", "plain")
    assert code == 2
    assert "cannot go on from 'plain/checkpoints'" in told


@pytest.mark.parametrize("given", ["--run", "--out", "--recipe"])
def test_a_resumed_run_has_its_own_choices(call, whole, given):
    value = {"--run": whole / "run.json", "--out": "there", "--recipe": "fdg-cifar"}[given]
    code, told = call("train", "--resume", whole, given, value)
    assert code == 2
    assert f"a resumed run has its own folder and choices; drop {given}" in told


def test_a_folder_that_is_no_run_is_refused(call):
    code, told = call("train", "--resume", "nowhere")
    assert code == 2
    assert "cannot read the run file 'nowhere/run.json'" in told
