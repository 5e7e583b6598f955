"""`hocket train --on-nan skip`: a run in which one batch becomes NaN."""

import itertools
import json
from pathlib import Path

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
    layers = nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)
    return nn.Sequential(Breaks(), nn.Flatten(), *layers)
"""


def test_a_batch_that_is_skipped_is_counted_and_told(here, call):
    batches = data.load("digits", data_dir=None, batch_size=64, seed=0).train.serve(0)
    x, _ = next(itertools.islice(batches, SPOILED, None))
    Path("own.py").write_text(NETWORK.format(total=float(x.sum())))
    words = ("--network", "own.py:net", "--plan", "3", "--epochs", "1", "--log-every", "1")
    code, out, err = call("train", *words, "--run-dir", "run", "--on-nan", "skip")
    assert code == 0
    assert "1 batch skipped" in err
    assert "batches skipped" in out.partition("finished: run")[2], "a table of its own"
    summary = json.loads(Path("run/summary.json").read_text())
    assert [stage["skipped"] for stage in summary["stages"]] == [1, 1]
    assert summary["epochs"][0]["skipped"] == [1, 1]
    rows = [json.loads(row) for row in Path("run/metrics.jsonl").read_text().splitlines()]
    place = {"stage": 0, "batch": SPOILED, "tick": SPOILED, "epoch": 0}
    row = {"kind": "skipped", **place, "fault": "output became nan"}
    assert [each for each in rows if each["kind"] == "skipped"] == [row]
    learned = {each["batch"] for each in rows if each["kind"] == "backward"}
    assert learned == {*range(23)} - {SPOILED}
