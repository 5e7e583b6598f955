"""Runs of a study in this process, one after the other, in the place of processes."""

import json
import math

import hocket
from hocket.runs.config import parse_config
from hocket.runs.start import train_in_process
from hocket_lab.studies import pool, sweep
from hocket_lab.studies.child import report

TINY = {
    "network": "mlp:hidden=[4]",
    "data": "synthetic:shape=[8],classes=3,examples=32,test_examples=16",
    "epochs": 2,
    "batch_size": 8,
    "optimizer": "SGD:lr=0.05,momentum=0.9",
}
NAN_NETWORK = """
from torch import nn
class NanOnce(nn.Linear):
    count = 0
    def forward(self, x):
        self.count += self.training
        return super().forward(x) * (float("nan") if self.training and self.count == 2 else 1)
def build():
    return nn.Sequential(NanOnce(8, 4), nn.Linear(4, 3))
"""
"""A network whose second forward in training mode gives NaN."""


class HereProcess:
    """Stands for the process of a run, which has ended when it has started."""

    stdin = None
    started = 0
    pid = 2**30  # no process has such a number

    def __init__(self, words, output):
        type(self).started += 1
        self.returncode = train_in_process(config_of(words), True, report)

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        """Do nothing, as it has ended."""

    def wait(self, timeout_s=None):
        return self.returncode


def config_of(words):
    """The configuration among the words for a process."""
    return parse_config(json.loads(words[0]), "a run")


def run_here(monkeypatch, *, draw=True):
    """Let runs happen in this process, and draw nothing if asked; return what counts them."""
    HereProcess.started = 0
    if not draw:
        monkeypatch.setattr(sweep, "draw_curves", lambda values, file: file.touch())
    monkeypatch.setattr(pool, "start_process", HereProcess)
    return HereProcess


def pretend_runs(monkeypatch, metrics):
    """Let runs end at once with metrics of their configuration; None lets them fail."""

    def pretend(config, *, resume):
        value = metrics(config)
        if value is None:
            raise hocket.HocketError("no luck")
        if not math.isfinite(value):
            raise hocket.errors.NonFiniteError("loss is nan\nhelp")
        config.write(config.run_dir / "run.json")
        evaluation = {"loss": value, "error": value / 10}
        row = {"kind": "epoch", "number": 0, "loss": value, "evaluation": evaluation}
        (config.run_dir / "metrics.jsonl").write_text(
            json.dumps(row | {"seconds": 2.0, "samples": 32}) + "\n"
        )
        return hocket.runs.summary.Summary("finished", "", config.run_dir, (), 2, 16, (), ())

    monkeypatch.setattr("hocket.runs.start.train", pretend)
