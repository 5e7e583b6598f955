"""Stages that run freely in processes of their own: nobody waits, and everything is counted."""

import os
import re
import signal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from contract.free_stages import assert_all_counted, assert_equal_ends, left_by
from contract.processes import in_processes, wait_until
from contract.returning import read_number, write_number
from contract.small import conv, data, sgd
from hocket import Trainer
from hocket.codecs import VQ
from hocket.distributed.folder.process_state import process_state
from hocket.errors import HangError, PeerFailedError
from hocket.methods import DGLAsync

STAGES = 3
EPOCHS = 2
LENGTH = 8
STOPPED_AT = 5
"""The turn at whose end a stage stops."""
REPEATED_AT = 12
"""A turn of the next stage for which it has received too few batches by then."""


class Stops:
    """Has stage 1 stop early in its training, and go on once stage 0 has learned enough."""

    def __init__(self, folder):
        self.folder, self.repeated = folder, Path(folder, "repeated")

    def __call__(self, event, stage):
        if event.action.kind != "B":
            return
        if (event.action.stage, event.action.batch) == (1, STOPPED_AT):
            write_number(self.folder, "pid", os.getpid())
            os.kill(os.getpid(), signal.SIGSTOP)
        if (event.action.stage, event.action.batch) == (2, REPEATED_AT):
            self.repeated.touch()
        if (event.action.stage, event.action.batch) == (0, EPOCHS * LENGTH - 1):
            wait_until(self._stopped)
            wait_until(self.repeated.exists)
            os.kill(read_number(self.folder, "pid"), signal.SIGCONT)

    def _stopped(self):
        return process_state(Path("/proc", str(read_number(self.folder, "pid")))) == "T"


def freely(folder, *, method=None, watch=None, **options):
    """Train, and say what there is to say of this process's stage."""
    modules, events = conv(STAGES), []
    with Trainer(
        modules,
        method=method or DGLAsync(buffer=3),
        optimizer=sgd,
        watchers=[lambda event, _: events.append(event), *([watch] if watch else [])],
        timeout_s=30,
        **options,
    ) as trainer:
        history = trainer.fit(
            data(conv, LENGTH, last=2), data(conv, 3), epochs=EPOCHS, progress=False
        )
        again = trainer.evaluate(data(conv, 3) if trainer.is_main_process else None).loss
        left = left_by(trainer, events, history)
        return left | {"evaluated again": again, "epoch": trainer.epoch}


def twice(folder):
    """Two trainings of one trainer."""
    modules, events = conv(STAGES), []
    with Trainer(
        modules,
        method=DGLAsync(accumulate=3),
        optimizer=sgd,
        watchers=[lambda event, _: events.append(event)],
    ) as trainer:
        for _ in range(2):
            trainer.fit(data(conv, 4), epochs=1, progress=False)
    return {"counts": {k: sum(e.action.kind == k for e in events) for k in "BU"}}


def starving(folder):
    """A first stage that feeds the others no more, which may use nothing twice."""

    def watch(event, stage):
        if event.action.stage == 0 and event.action.batch == 2:
            wait_until(lambda: trainer._session.world.failures.record.known)

    trainer = Trainer(
        conv(STAGES), method=DGLAsync(reuse=1), optimizer=sgd, watchers=[watch], timeout_s=1
    )
    try:
        trainer.fit(data(conv, LENGTH), epochs=1, progress=False)
    except (HangError, PeerFailedError) as error:
        return {"error": str(error)}
    return {"error": "none"}


CASES = {
    "plain": freely,
    "slow end": lambda folder: freely(folder, stage_speeds=(1, 1, 0.2)),
    "slow beginning": lambda folder: freely(folder, stage_speeds=(0.2, 1, 1)),
    "codebooks": lambda folder: freely(folder, codec=VQ(groups=1, codes=3)),
    "stopped": lambda folder: freely(folder, watch=Stops(folder)),
    "limited": lambda folder: freely(folder, method=DGLAsync(buffer=2, reuse=1)),
    "twice": twice,
    "starving": starving,  # the last one: its stages end at different times
}


def _train_all(folder):
    torch.manual_seed(0)
    return {name: case(folder) for name, case in CASES.items()}


@cache
def found():
    """What every process said in every case."""
    with TemporaryDirectory() as folder:
        parts = in_processes(_train_all, folder, processes=STAGES)
    return {name: [part[name] for part in parts] for name in CASES}


pytestmark = pytest.mark.xdist_group("free processes")
TRAININGS = ["plain", "slow end", "slow beginning", "codebooks", "stopped", "limited"]
every_training = pytest.mark.parametrize("name", TRAININGS)
TURNS = EPOCHS * LENGTH


@every_training
def test_every_stage_learns_for_as_many_epochs_of_its_own(name):
    for one in found()[name]:
        assert one["counts"]["B"] == one["counts"]["U"] == TURNS
        assert one["epochs"] == [turn // LENGTH for turn in range(TURNS)]
        assert one["epoch"] == EPOCHS


@every_training
def test_every_batch_is_counted_and_all_end_with_the_same_network_and_history(name):
    stages = found()[name]
    assert_all_counted(stages)
    assert [one["counts"]["F"] for one in stages] == [one["ticks"] for one in stages]
    assert not any(one["receive"]["lost"] for one in stages[1:])
    assert_equal_ends(stages, EPOCHS)
    assert stages[0]["history"][0]["evaluation"] is None


def test_a_slow_beginning_is_used_again_and_a_slow_end_misses_batches():
    stages = found()["slow beginning"]
    assert stages[1]["receive"]["reused"] > 0
    stages = found()["slow end"]
    assert stages[2]["receive"]["dropped"] + stages[1]["send"]["unsent"] > 0


def test_the_others_go_on_while_a_stage_is_stopped():
    """The first stage has learned all it has to before it lets the stopped one go on."""
    stages = found()["stopped"]
    assert stages[0]["counts"]["B"] == TURNS
    missed = stages[0]["send"]["unsent"] + stages[1]["receive"]["dropped"]
    assert missed > 0
    assert stages[2]["receive"]["reused"] > 0


def test_what_may_be_used_once_is_used_once():
    for one in found()["limited"][1:]:
        assert one["receive"]["reused"] == 0


def test_a_second_training_learns_as_much_again_and_ends_with_whole_updates():
    for one in found()["twice"]:
        assert one["counts"] == {"B": 8, "U": 4}


def test_a_stage_that_finds_nothing_to_draw_names_whom_it_waits_for():
    texts = [one["error"] for one in found()["starving"]]
    (told,) = {text for text in texts if "waited" in text}
    pattern = r"stage [12] waited \d+ s for anything from stage [01]; stage 0 has been taking"
    assert re.match(pattern, told)
