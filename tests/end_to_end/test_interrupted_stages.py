"""Ctrl-C in the middle of an epoch of stages that run freely, in processes of their own."""

import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import distributed, nn

from contract.small import sgd
from hocket import Checkpoints, Plan, Trainer
from hocket.distributed.launching.launch import launch
from hocket.training.callback import Callback

BATCHES = 30


class Slow(nn.Module):
    """Layer that gives an interrupt time to arrive."""

    def forward(self, x):
        if torch.is_grad_enabled():
            time.sleep(0.02)
        return x


class Interrupt(Callback):
    """Interrupts its process after some steps."""

    def __init__(self, steps):
        self.left = steps

    def on_step(self, trainer, events):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)


def work(folder, steps, interrupted=0):
    """Train for two epochs, or until a stage is interrupted; leave what the result counts.

    Args:
        folder: Folder of checkpoints and of what is left.
        steps: Steps of a stage until it is interrupted; 0 to resume.
        interrupted: That stage.
    """
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), Slow(), nn.Linear(4, 4), Slow(), nn.Linear(4, 3))
    trainer = Trainer(
        network.double(),
        stages=Plan(("2",)),
        method="dgl-async:reuse=1",  # no stage is far ahead of the one that is interrupted
        optimizer=sgd,
        resumable=True,
    )
    data = [(torch.randn(8, 4).double(), torch.randint(3, (8,))) for _ in range(BATCHES)]
    left = {}
    if not steps:
        at = trainer.resume(Path(folder) / "checkpoints")
        left = {"epoch": at.epoch, "batch": at.batch}
    callbacks = [Interrupt(steps)] if steps and distributed.get_rank() == interrupted else []
    history = trainer.fit(
        data,
        epochs=2,
        progress=False,
        callbacks=callbacks,
        checkpoints=Checkpoints(Path(folder) / "checkpoints", every=1000),
    )
    left["samples"] = [epoch.samples for epoch in history]
    Path(folder, f"{trainer.process_name}.json").write_text(json.dumps(left))
    return 0


def test_stages_that_are_stopped_within_an_epoch_go_on_in_it(tmp_path):
    assert launch(work, str(tmp_path), 5, processes=2, threads=1) == 130
    assert launch(work, str(tmp_path), 0, processes=2, threads=1) == 0
    for stage, least in (("stage0", 1), ("stage1", 0)):  # which may not have begun by then
        left = json.loads((tmp_path / f"{stage}.json").read_text())
        assert left["epoch"] == 0
        assert least <= left["batch"] < BATCHES
        assert left["samples"] == [8 * BATCHES] * 2


def test_a_stage_that_is_stopped_alone_stops_the_others(tmp_path):
    """They would wait for it to learn for two epochs, which it never does."""
    assert launch(work, str(tmp_path), 5, 1, processes=2, threads=1) == 130
