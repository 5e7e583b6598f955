"""Phases that take longer than the time-out of a step are no hang, in a world of two processes.

One launch goes through all of them, with a time-out that each of them exceeds.
"""

import os
import signal
import subprocess
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from torch import distributed, nn

from benchmarks.faults.processes import wake_command
from contract.processes import in_processes
from contract.small import data, different, mlp, sgd
from hocket import Checkpoints, Trainer
from hocket.checkpoint import writer
from hocket.distributed.failures.detector import STATUS_REQUEST_KEY
from hocket.distributed.failures.phases import Phase
from hocket.methods import FDG

TIMEOUT_S = 2.0
SLOW_S = 1.5 * TIMEOUT_S
BATCHES, EPOCHS = 6, 2


class SlowOnce(nn.Module):
    """Identity layer that is slow the first time, in each of two modes, as a compiler is."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def forward(self, x):
        if self.training not in self.seen:
            self.seen.add(self.training)
            time.sleep(SLOW_S)
        return x


class PlainLoader:
    """Loader that is not Hocket's own, slow at some batches, and interrupted at one."""

    def __init__(self, slow=(), stop=None):
        self.slow, self.stop, self.number = slow, stop, 0

    def __len__(self):
        return BATCHES

    def __iter__(self):
        for batch in data(mlp, BATCHES):
            if self.number in self.slow:
                time.sleep(SLOW_S)
            if self.number == self.stop:
                signal.raise_signal(signal.SIGINT)
            self.number += 1
            yield batch


def build_trainer(*, slow):
    modules = mlp(2)
    if slow:
        modules[1].append(SlowOnce())
    return Trainer(
        modules,
        method=FDG(),
        optimizer=sgd,
        resumable=True,
        timeout_s=TIMEOUT_S,
        slow_timeout_s=600,
    )


def suspend_both(trainer):
    """Stop both processes, which another one continues."""
    pids = trainer.gather(os.getpid())
    if trainer.is_main_process:
        with subprocess.Popen(wake_command(SLOW_S, *pids)):
            for pid in reversed(pids):
                os.kill(pid, signal.SIGSTOP)


def work(folder):
    """Train through all slow phases, be interrupted in an evaluation, and resume."""
    rank, place = distributed.get_rank(), Path(folder, "checkpoints")
    write, requests = writer.write_file, {}

    def count_requests(trainer, phase):
        store = trainer._session.world.failures.store
        requests[phase] = int(store.get(STATUS_REQUEST_KEY) or 0)

    def slow_write(*arguments):
        if rank == 1 and not list(place.glob("tick-*")):
            time.sleep(SLOW_S)
        return write(*arguments)

    if rank == 1:
        time.sleep(SLOW_S)
    trainer = build_trainer(slow=True)
    count_requests(trainer, Phase.STARTING)
    trainer.evaluate(PlainLoader(slow=[0]))
    count_requests(trainer, Phase.EVALUATING)
    suspend_both(trainer)
    train, validation = PlainLoader(slow=[0]), PlainLoader(stop=BATCHES + 1)
    with patch.object(writer, "write_file", slow_write), pytest.raises(KeyboardInterrupt):
        trainer.fit(
            train,
            validation,
            epochs=EPOCHS,
            progress=False,
            checkpoints=Checkpoints(place, every=4, on_error="stop"),
        )
    count_requests(trainer, Phase.SAVING)
    read = validation.number
    trainer.close()
    trainer = build_trainer(slow=False)
    trainer.resume(place)
    history = trainer.fit(
        PlainLoader(slow=[1, 3]), PlainLoader(), epochs=EPOCHS, progress=False
    )
    count_requests(trainer, Phase.READING)
    losses = [[epoch.loss, epoch.evaluation.loss] for epoch in history]
    weights = list(trainer.network.state_dict().values())
    return {"losses": losses, "weights": weights, "requests": requests, "read": read}


def test_slow_phases_are_waited_for_and_an_interrupted_evaluation_is_repeated(tmp_path):
    result, _ = in_processes(work, str(tmp_path), processes=2)
    trainer = build_trainer(slow=False)
    history = trainer.fit(PlainLoader(), PlainLoader(), epochs=EPOCHS, progress=False)
    assert result["losses"] == [[epoch.loss, epoch.evaluation.loss] for epoch in history]
    assert not different(result["weights"], trainer.network.state_dict().values())
    assert result["read"] < 2 * BATCHES  # the evaluation was dropped
    asked = list(result["requests"].values())
    assert 0 < asked[0] < asked[1] < asked[2], "no phase was longer than the time-out"
    assert asked[3] > 0
