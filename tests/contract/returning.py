"""Asynchronous trainings in which one stage is killed and restarted while the others go on.

The order of events is fixed by ticks: the stage is killed after one of its ticks, the others
wait for that after the same tick, and the new process begins only after some more ticks of the
others.
"""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from contract.free_stages import left_by
from contract.processes import wait_until
from contract.small import Batches, WatchedBatches, conv, data, sgd
from hocket import Checkpoints, Trainer
from hocket.checkpoint.directory import newest_first
from hocket.distributed.folder import identity
from hocket.distributed.folder.restart import RestartBudget, retry_after_loss
from hocket.distributed.launching.launch import launch
from hocket.distributed.world.membership import Membership
from hocket.methods import DGLAsync
from hocket.runs.run_dir import has_checkpoints
from hocket.transport.processes.connection import Connection

STAGES = 3
LENGTH = 8
EPOCHS = 6
KILLED_AT = 13
"""The tick after which a stage is killed."""
MORE = 5
"""Ticks of each of the other stages before the new process begins."""
EVERY = 4


def learnable(count: int) -> Batches:
    """Return batches whose classes can be told from the inputs."""
    return [(x / 10 + y[:, None, None, None], y) for x, y in data(conv, count, size=16)]


def write_number(folder, name, number):
    new = Path(folder, f"{name}.new")
    new.write_text(str(number))
    new.rename(Path(folder, name))


def read_number(folder, name):
    file = Path(folder, name)
    return int(file.read_text()) if file.exists() else -1


class KillOnce:
    """Watcher that kills one stage after a tick, once, and lets the others wait for that.

    All that the stage has sent arrives before, so some of it comes from turns done again.
    """

    def __init__(self, folder, victim, rank, again=False):
        self.folder, self.victim, self.rank = Path(folder), victim, rank
        self.kills = again or not (self.folder / "killed").exists()

    def __call__(self, event, stage):
        if event.action.kind != "B":
            return
        tick, marker = event.action.batch, self.folder / "killed"
        write_number(self.folder, f"{self.rank}.tick", tick)
        if self.rank == self.victim and not marker.exists() and tick >= KILLED_AT - 1:
            wait_until(lambda: self.have_arrived(stage))
        if tick != KILLED_AT or self.victim is None:
            return
        if self.rank != self.victim:
            wait_until(lambda: self.write_arrived(stage) or marker.exists())
        elif self.kills:
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def write_arrived(self, stage):
        if stage.receive_stats is not None:
            write_number(self.folder, f"{self.rank}.arrived", stage.receive_stats.arrived)

    def have_arrived(self, stage):
        arrived = read_number(self.folder, f"{self.rank + 1}.arrived")
        return self.rank == STAGES - 1 or arrived == stage.send_stats.sent


def build_trainer(watchers, **options):
    return Trainer(
        conv(STAGES),
        method=DGLAsync(buffer=3),
        optimizer=partial(sgd, lr=0.05),
        watchers=watchers,
        resumable=True,
        **options,
    )


def train(
    folder,
    victim,
    *,
    points=("tick",),
    again=False,
    timeout_s=60.0,
    slow_timeout_s=1800.0,
    codec=None,
    resume=False,
    restarted=False,
):
    """Train in this process, and write the results of its stage to a file.

    The victim is killed once at each point: after a ``tick`` (every incarnation of it, if
    ``again``), before its first checkpoint is ``saved``, when the ``evaluation`` begins, whose
    data only the first stage reads, and before the weights are ``gathered``. If the whole job
    was ``restarted``, it resumes if there are checkpoints.
    """
    torch.manual_seed(0)
    rank, place = int(os.environ["RANK"]), Path(folder, "checkpoints")
    Path(folder, f"{rank}-{int(identity.has_rejoined())}.pid").write_text(str(os.getpid()))
    others = [other for other in range(STAGES) if other != rank]
    first_tick, dies_in_tick = 0, "tick" in points

    def reach(point):
        marker = Path(folder, f"killed-{point}")
        if rank == victim and point in points and not marker.exists():
            if point == "saved":
                wait_until(lambda: all(checkpoints(folder, other) for other in others))
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    if identity.has_rejoined() and dies_in_tick:
        files = [f"{other}.tick" for other in others]
        wait_until(lambda: min(read_number(folder, f) for f in files) >= KILLED_AT + MORE)
    events = []
    killer = KillOnce(folder, victim if dies_in_tick else None, rank, again)
    watchers = [lambda event, _: events.append(event), killer]
    trainer = build_trainer(
        watchers, timeout_s=timeout_s, slow_timeout_s=slow_timeout_s, codec=codec
    )
    if restarted and not identity.has_rejoined():
        resume = any(trainer.gather(has_checkpoints(Path(folder), STAGES)))
    if identity.has_rejoined() or resume:
        trainer.resume(place)
        first_tick = trainer.engine.tick_count
    history = trainer.fit(
        learnable(LENGTH),
        WatchedBatches(learnable(3), lambda _, number: number or reach("evaluation")),
        epochs=EPOCHS,
        on_epoch=lambda _: reach("gathered"),
        progress=False,
        checkpoints=Checkpoints(place, every=EVERY, note=lambda: reach("saved")),
    )
    results = left_by(trainer, events, history) | {
        "first tick": first_tick,
        "evaluated again": trainer.evaluate(learnable(3)).loss,
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    return 0


def train_apart(folder, victim):
    """Train with a killed stage that drops no packet, and is connected after its last tick."""
    form = Membership.pair_group

    def form_late(membership, rank):
        ended = read_number(folder, f"{victim}.tick") == EPOCHS * LENGTH - 1
        return form(membership, rank) if ended else None

    never = patch.object(Connection, "busy", False)
    with patch.object(Membership, "pair_group", form_late), never:
        return train(folder, victim)


def train_without_rejoin(folder, victim, restarted):
    if identity.has_rejoined():
        time.sleep(1000)
    limit_s = 60.0 if restarted else 15.0
    return train(folder, victim, timeout_s=limit_s, slow_timeout_s=limit_s, restarted=restarted)


def train_stopped(folder, victim):
    """Train in this process; one stage is stopped after a tick, and the others need nothing."""
    rank = int(os.environ["RANK"])

    def stop(event, stage):
        if rank == victim and event.action.kind == "B" and event.action.batch == KILLED_AT:
            os.kill(os.getpid(), signal.SIGSTOP)

    trainer = build_trainer([stop], timeout_s=10.0)
    trainer.fit(learnable(LENGTH), epochs=EPOCHS, progress=False)


def launch_stages(work, folder, victim, grace_s=5.0, budget=None):
    """Launch a process for each stage; one that is killed is restarted once by default."""
    return launch(
        work,
        str(folder),
        victim,
        processes=STAGES,
        threads=1,
        grace_s=grace_s,
        rejoin_restarts=budget or RestartBudget(1),
    )


def launch_with_restarts(work, folder, victim, limit, grace_s=5.0):
    """Launch and restart a process alone, or the whole job, as ``hocket train`` does."""
    budget = RestartBudget(limit)

    def start(again):
        return launch_stages(partial(work, restarted=again), folder, victim, grace_s, budget)

    return retry_after_loss(start, budget)


def read_results(folder):
    """Return the results of all processes."""
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(STAGES)]


def checkpoints(folder, rank):
    return newest_first(Path(folder, "checkpoints", f"stage{rank}"))
