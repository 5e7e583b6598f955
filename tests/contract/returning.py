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
from hocket import Checkpoints, Trainer
from hocket.checkpoint.directory import newest_first
from hocket.distributed import identity
from hocket.distributed.launch import launch
from hocket.distributed.restart import Restarts, retry_after_loss
from hocket.methods import DGLAsync
from hocket.runs.train import has_checkpoints
from hocket.transport.codecs import VQ

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
    return [(x / 10 + y[:, None, None, None], y) for x, y in data(conv, count, size=16)]


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
        self.kills = again or not (self.folder / "killed").exists()

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
        optimizer=partial(sgd, lr=0.05),
        watchers=watchers,
        resumable=True,
        **options,
    )


class Validation(list):
    """Batches that tell of each time that somebody begins to read them."""

    def __init__(self, batches, told):
        super().__init__(batches)
        self.told = told

    def __iter__(self):
        self.told()
        return super().__iter__()


def train(
    folder,
    victim,
    *,
    points=("turn",),
    again=False,
    timeout_s=60.0,
    codec=None,
    resume=False,
    restarted=False,
):
    """Train in this process, and say what there is to say of its stage.

    The victim is killed at each of the points, once: after a ``turn``, when its trainer is
    ``made``, before its first part is ``saved``, as the ``evaluation`` begins, and before the
    weights are ``gathered``. Only the first stage reads what is evaluated on.
    """
    rank, place = int(os.environ["RANK"]), Path(folder, "checkpoints")
    Path(folder, f"{rank}-{int(identity.has_rejoined())}.pid").write_text(str(os.getpid()))
    others = [other for other in range(STAGES) if other != rank]
    began, dies_in_turn = 0, "turn" in points

    def come_to(point):
        mark = Path(folder, f"killed-{point}")
        if rank == victim and point in points and not mark.exists():
            if point == "saved":
                until(lambda: all(parts(folder, other) for other in others))
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    if identity.has_rejoined() and dies_in_turn:
        until(lambda: all(learned(folder, o) >= KILLED_AT + MORE for o in others))
    events = []
    deadly = Deadly(folder, victim if dies_in_turn else None, rank, again)
    watch = [lambda event, _: events.append(event), deadly]
    trainer = trainer_of(watch, timeout_s=timeout_s, codec=codec)
    come_to("made")
    if restarted and not identity.has_rejoined():
        resume = any(trainer.gather(has_checkpoints(Path(folder), STAGES)))
    if identity.has_rejoined() or resume:
        trainer.resume(place)
        began = trainer._rig.engine.tick_count
    history = trainer.fit(
        learnable(LENGTH),
        Validation(learnable(3), lambda: come_to("evaluation")),
        epochs=EPOCHS,
        on_epoch=lambda _: come_to("gathered"),
        progress=False,
        checkpoints=Checkpoints(place, every=EVERY, note=lambda: come_to("saved")),
    )
    stage, engine = trainer.stages[0], trainer._rig.engine
    said = {
        "began": began,
        "turns": engine.tick_count,
        "losses": [e.report.loss for e in events if e.action.kind == "B"],
        "learned": [e.action.batch for e in events if e.action.kind == "B"],
        "ledger": asdict(stage.send_stats),
        "uses": asdict(stage.receive_stats) if stage.receive_stats else None,
        "waiting": engine._buffer.waiting if stage.receive_stats else 0,
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


def never_back(folder, victim, restarted):
    if identity.has_rejoined():
        time.sleep(1000)
    return train(folder, victim, timeout_s=60.0 if restarted else 4.0, restarted=restarted)


def started(work, folder, victim, grace_s=5.0, restarts=None):
    return launch(
        work,
        str(folder),
        victim,
        processes=STAGES,
        threads=1,
        grace_s=grace_s,
        alone=restarts or Restarts(1),
    )


def kept_up(work, folder, victim, most, grace_s=5.0):
    """Started, and started again alone or as a whole, as `hocket train` does."""
    restarts = Restarts(most)

    def start(again):
        return started(partial(work, restarted=again), folder, victim, grace_s, restarts)

    return retry_after_loss(start, restarts)


def said(folder):
    """What the processes have said that came to the end."""
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(STAGES)]


def parts(folder, rank):
    return newest_first(Path(folder, "checkpoints", f"stage{rank}"))
