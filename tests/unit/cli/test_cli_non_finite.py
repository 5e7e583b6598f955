"""`hocket train --on-nan`: runs in which one batch becomes NaN."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from hocket import data
from hocket.cli.main import main
from hocket.errors import NonFiniteError
from hocket.runs.config import RunConfig
from hocket.runs.skipped_batches import (
    EXIT_CODE,
    RestoreRequest,
    note_skipped_batch,
    read_skipped_batches,
    retry_skipping,
)

SPOILED = 12
NETWORK = """
import torch
from torch import nn

class Breaks(nn.Module):
    def forward(self, x):
        broken = self.training and abs(float(x.sum()) - {total}) < 1e-3
        return x * torch.nan if broken else x

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

def broken():
    return nn.Sequential(Breaks(), *net())
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Return a function that trains a network that breaks at one batch: exit code, output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    batches = data.load("digits", data_dir=None, batch_size=64, seed=0).train.serve(0)
    x, _ = next(itertools.islice(batches, SPOILED, None))
    Path("own.py").write_text(NETWORK.format(total=float(x.sum())))

    def run(*words, out="run"):
        common = ("--network", "own.py:broken", "--plan", "3", "--epochs", "1")
        common += ("--log-every", "1")
        code = main(["train", *common, "--run-dir", out, *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def read_summary(folder):
    return json.loads((folder / "summary.json").read_text())


def read_rows(folder, kind):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] == kind]


def test_it_stops_with_stage_batch_tick_and_tensor(call):
    code, said = call()
    assert code == 2
    assert "the output became nan; this stage's weights are those before this batch" in said
    assert f"(stage 0, batch {SPOILED}, tick {SPOILED}: F0.{SPOILED})" in said
    assert read_summary(Path("run"))["state"] == "failed"


def test_a_batch_that_is_skipped_is_counted_and_told(call):
    code, said = call("--on-nan", "skip")
    assert code == 0
    assert "1 batch skipped" in said
    assert "batches skipped" in said.partition("finished: run")[2], "a table of its own"
    summary = read_summary(Path("run"))
    assert [stage["skipped"] for stage in summary["stages"]] == [1, 1]
    assert summary["epochs"][0]["skipped"] == [1, 1]
    place = {"stage": 0, "batch": SPOILED, "tick": SPOILED, "epoch": 0}
    row = {"kind": "skipped", **place, "fault": "output became nan"}
    assert read_rows(Path("run"), "skipped") == [row]
    assert {row["batch"] for row in read_rows(Path("run"), "backward")} == {*range(23)} - {
        SPOILED
    }


def test_a_run_that_goes_back_is_one_that_skips(call):
    """A batch that breaks at the first stage is skipped by all stages in both ways."""
    words = ("--checkpoint-every", 5)
    assert call(*words, "--on-nan", "skip", out="skips")[0] == 0
    code, said = call(*words, "--on-nan", "restore", out="back")
    assert code == 0
    assert f"restoring the last checkpoint, to skip batch {SPOILED}" in said
    assert read_skipped_batches(Path("back")) == [SPOILED]
    skips, back = (
        torch.load(Path(name) / "network.pt", weights_only=True) for name in ("skips", "back")
    )
    assert all(torch.equal(skips[name], back[name]) for name in skips)
    backward = (read_rows(Path(name), "backward") for name in ("skips", "back"))
    assert list(next(backward)) == list(next(backward))
    assert [stage["skipped"] for stage in read_summary(Path("back"))["stages"]] == [1, 1]


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(call):
    code, said = call("--checkpoint-every", 100, "--on-nan", "restore")
    assert code == 2
    assert "there is no checkpoint yet to restore" in said


def test_only_the_process_that_was_the_first_to_find_it_notes_the_batch(call, monkeypatch):
    """Others that find the same at the same time would take the batch for a skipped one."""
    monkeypatch.setattr("hocket.runs.training_run.report_failure", lambda error: False)
    code, said = call("--checkpoint-every", 5, "--on-nan", "restore")
    assert code == 2
    assert "the output became nan" in said
    assert "restoring" not in said
    assert read_skipped_batches(Path("run")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on-nan", "restore"), "there are no checkpoints to restore; give"),
        (("--on-nan", "skip", "--replicas", 2), "do not agree on which to skip"),
        (
            ("--on-nan", "restore", "--checkpoint-every", 5, "--method", "dgl-async"),
            "run freely",
        ),
        (("--max-restores", -1), "max_restores is -1; use a number of at least 0"),
    ],
)
def test_what_cannot_be_is_refused(call, words, said):
    code, told = call(*words)
    assert code == 2
    assert said in told


def build_error(batch):
    error = NonFiniteError("the loss became nan")
    error.batch = batch
    return error


def test_batches_are_noted_once_each_and_not_for_ever(tmp_path):
    assert read_skipped_batches(tmp_path) == []
    assert isinstance(note_skipped_batch(tmp_path, build_error(3), limit=2), RestoreRequest)
    with pytest.raises(NonFiniteError, match="became nan; skipping a batch does not help"):
        note_skipped_batch(tmp_path, build_error(3), limit=2)
    with pytest.raises(NonFiniteError, match="skipping a batch does not help"):
        note_skipped_batch(tmp_path, build_error(None), limit=2)
    note_skipped_batch(tmp_path, build_error(7), limit=2)
    with pytest.raises(NonFiniteError, match="has been restored 2 times already"):
        note_skipped_batch(tmp_path, build_error(9), limit=2)
    assert read_skipped_batches(tmp_path) == [3, 7]


@pytest.mark.parametrize(
    ("on_nan", "codes", "starts"),
    [
        ("restore", [EXIT_CODE, EXIT_CODE, 130], 3),
        ("restore", [EXIT_CODE] * 9, 4),  # the exit of a layer, which notes no batch
        ("stop", [EXIT_CODE] * 9, 1),
    ],
)
def test_a_run_is_started_again_when_it_asks_and_may(on_nan, codes, starts):
    config, told = RunConfig(on_nan=on_nan, checkpoint_every=1, max_restores=3), []
    code = retry_skipping(config, lambda again: told.append(again) or codes[len(told) - 1])
    assert code == codes[starts - 1]
    assert told == [False] + [True] * (starts - 1)
