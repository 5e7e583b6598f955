"""Trainings of free stages of which one is killed, and started again while the others go on.

All of it goes by turns: a stage is killed after one of its own, the others wait for that after
one of theirs, and the new process begins only once they have learned from some more.
"""

import json
import os
import signal
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from contract.small import Batches, conv, data, sgd
from hocket import Checkpoints, Trainer, seat
from hocket.checkpoint.folder import newest_first
from hocket.codec import VQ
from hocket.launch import launch
from hocket.methods import DGLAsync

STAGES = 3
LENGTH = 8
EPOCHS = 6
KILLED_AT = 13
"""The turn after which a stage is killed."""
MORE = 5
"""Turns of each of the others before the new process begins."""
EVERY = 4


def learnable(count: int) -> Batches:
    """Batches whose classes can be told from the inputs."""
    return [(x / 10 + y[:, None, None, None], y) for x, y in data(conv, count)]


def until(there, seconds=60.0):
    """Wait for what another process does, however slow the machine is."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "the others have stopped"
        time.sleep(0.01)


def learned(folder, rank):
    """The last turn that a stage has learned from in any of its lives."""
    file = Path(folder, f"{rank}.turn")
    return int(file.read_text()) if file.exists() else -1


class Deadly:
    """Kills one stage after a turn, once, and has the others wait for that."""

    def __init__(self, folder, victim, rank, again=False):
        self.folder, self.victim, self.rank = Path(folder), victim, rank
        self.life = int(seat.returned())
        self.kills = self.life == 0 or again

    def __call__(self, event, stage):
        if event.action.kind != "B":
            return
        turn, mark = event.action.batch, self.folder / "killed"
        new = self.folder / f"{self.rank}.new"
        new.write_text(str(turn))
        new.rename(self.folder / f"{self.rank}.turn")
        if turn != KILLED_AT or self.victim is None:
            return
        if self.rank != self.victim:
            until(mark.exists)
        elif self.kills:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def trainer_of(watchers, **options):
    return Trainer(
        conv(STAGES),
        method=DGLAsync(buffer=3),
        optimizer=partial(sgd, lr=0.02),
        watchers=watchers,
        resumable=True,
        **options,
    )


def train(folder, victim, *, again=False, timeout_s=60.0, codec=None, resume=False):
    """Train in this process, and say what there is to say of its stage."""
    rank, place = int(os.environ["RANK"]), Path(folder, "checkpoints")
    Path(folder, f"{rank}-{int(seat.returned())}.pid").write_text(str(os.getpid()))
    others = [other for other in range(STAGES) if other != rank]
    began = 0
    if seat.returned():
        until(lambda: all(learned(folder, o) >= KILLED_AT + MORE for o in others))
    events = []
    watch = [lambda event, _: events.append(event), Deadly(folder, victim, rank, again)]
    trainer = trainer_of(watch, timeout_s=timeout_s, codec=codec)
    if seat.returned() or resume:
        trainer.resume(place)
        began = trainer._rig.engine.now
    history = trainer.fit(
        learnable(LENGTH),
        learnable(3),
        epochs=EPOCHS,
        progress=False,
        checkpoints=Checkpoints(place, every=EVERY),
    )
    stage, engine = trainer.stages[0], trainer._rig.engine
    said = {
        "began": began,
        "turns": engine.now,
        "losses": [e.report.loss for e in events if e.action.kind == "B"],
        "learned": [e.action.batch for e in events if e.action.kind == "B"],
        "ledger": asdict(stage.ledger),
        "uses": asdict(stage.uses) if stage.uses else None,
        "waiting": engine._buffer.waiting if stage.uses else 0,
        "history": [asdict(epoch) | {"seconds": 0.0} for epoch in history],
        "weights": [float(v.double().sum()) for v in trainer.network.state_dict().values()],
        "again": trainer.evaluate(learnable(3)).loss,
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(said))
    return 0


def whole(folder, victim):
    torch.manual_seed(0)
    return train(folder, victim)


def coded(folder, victim):
    return train(folder, victim, codec=VQ(groups=1, codes=3))


def twice(folder, victim):
    return train(folder, victim, again=True)


def resumed(folder, victim):
    return train(folder, None, resume=True)


def never_back(folder, victim):
    if seat.returned():
        time.sleep(1000)
    return train(folder, victim, timeout_s=4.0)


def too_early(folder, victim):
    """A stage that is killed before the others are out."""
    if int(os.environ["RANK"]) == victim and not seat.returned():
        trainer_of([])
        os.kill(os.getpid(), signal.SIGKILL)
    return train(folder, None, timeout_s=20.0)


def started(work, folder, victim, grace_s=5.0):
    words = (str(folder), victim)
    return launch(work, *words, processes=STAGES, threads=1, grace_s=grace_s, lives=1)


def said(folder):
    """What the processes have said that came to the end."""
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(STAGES)]


def parts(folder, rank):
    return newest_first(Path(folder, "checkpoints", f"stage{rank}"))
