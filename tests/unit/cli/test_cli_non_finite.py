"""`hocket train --on-nan`: runs in which one batch becomes NaN."""

import itertools
import json
from pathlib import Path

import pytest

from hocket import data

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
def call(here, call):
    """Return a function that trains a network that breaks at one batch: exit code, output."""
    batches = data.load("digits", data_dir=None, batch_size=64, seed=0).train.serve(0)
    x, _ = next(itertools.islice(batches, SPOILED, None))
    Path("own.py").write_text(NETWORK.format(total=float(x.sum())))
    common = ("--network", "own.py:broken", "--plan", "3", "--epochs", "1", "--log-every", "1")

    def run(*words):
        code, out, err = call("train", *common, "--run-dir", "run", *words)
        return code, out + err

    return run


def read_summary():
    return json.loads(Path("run/summary.json").read_text())


def read_rows(kind):
    rows = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] == kind]


def test_it_stops_with_stage_batch_tick_and_tensor(call):
    code, said = call()
    assert code == 2
    assert "the output became nan" in said
    assert f"(stage 0, batch {SPOILED}, tick {SPOILED}: F0.{SPOILED})" in said
    assert read_summary()["state"] == "failed"


def test_a_batch_that_is_skipped_is_counted_and_told(call):
    code, said = call("--on-nan", "skip")
    assert code == 0
    assert "1 batch skipped" in said
    assert "batches skipped" in said.partition("finished: run")[2], "a table of its own"
    summary = read_summary()
    assert [stage["skipped"] for stage in summary["stages"]] == [1, 1]
    assert summary["epochs"][0]["skipped"] == [1, 1]
    place = {"stage": 0, "batch": SPOILED, "tick": SPOILED, "epoch": 0}
    row = {"kind": "skipped", **place, "fault": "output became nan"}
    assert read_rows("skipped") == [row]
    assert {row["batch"] for row in read_rows("backward")} == {*range(23)} - {SPOILED}
