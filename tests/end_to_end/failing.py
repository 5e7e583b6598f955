"""Trainings that go wrong in one process; each process imports them by name.

Run as a script, its words are the way of going wrong, the stage and the open line.
"""

import contextlib
import itertools
import os
import signal
import sys
import time
from unittest.mock import patch

import torch
from torch import distributed, nn

from benchmarks.faults.packets import damaged
from hocket import Trainer
from hocket.errors import NonFiniteError, PeerFailedError
from hocket.methods import DGLAsync
from hocket.transport.connection import OutgoingMessage
from unit.distributed.launched import addresses

TRAPPED_AT = 4
"""The batch whose forward goes wrong."""


def user_error(x):
    raise ValueError("the user's own")


def not_a_number(x):
    return x * float("nan")


def kill(x):
    os.kill(os.getpid(), signal.SIGKILL)


def stop(x):
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep(x):
    time.sleep(1000)


def leave(x):
    sys.exit(3)


class Trap(nn.Module):
    """A layer that does something else at one of its batches."""

    def __init__(self, do, *, training):
        super().__init__()
        self.do = do
        self.for_training = training
        self.seen = 0

    def forward(self, x):
        if self.training != self.for_training:
            return x
        self.seen += 1
        return self.do(x) if self.seen == TRAPPED_AT + 1 else x


def data(count):
    make = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 4, generator=make), torch.randint(4, (8,), generator=make))
        for _ in range(count)
    ]


def trainer(do, where, *, stages=3, training=True, replicas=1, method=None):
    """A trainer whose network does something else in the process of one rank."""
    rank = distributed.get_rank() if distributed.is_initialized() else int(os.environ["RANK"])
    torch.manual_seed(0)
    modules = [
        nn.Sequential(
            nn.Linear(4, 4),
            Trap(do if rank == where else lambda x: x, training=training),
        )
        for _ in range(stages)
    ]
    return Trainer(
        modules,
        method=method,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        replicas=replicas,
        timeout_s=3,
    )


def in_training(line, do, where, options):
    """An accident in the forward of a batch."""
    os.open(line, os.O_WRONLY)  # closes with the process
    trainer(do, where, **options).fit(data(20), epochs=1, progress=False)
    return 0


def in_evaluation(line, do, where):
    os.open(line, os.O_WRONLY)
    trainer(do, where, training=False).fit(data(6), data(20), epochs=1, progress=False)
    return 0


def in_the_data(line):
    os.open(line, os.O_WRONLY)

    def broken():
        yield from data(TRAPPED_AT)
        raise OSError("the disk is gone")

    trainer(None, None).fit(broken(), epochs=1, progress=False)
    return 0


def before_the_trainer(line, where):
    os.open(line, os.O_WRONLY)
    if distributed.get_rank() == where:
        raise ValueError("the user's own")
    trainer(None, None).fit(data(20), epochs=1, progress=False)
    return 0


def between_trainings(line, do, where):
    os.open(line, os.O_WRONLY)
    trained = trainer(None, None)
    trained.fit(data(6), epochs=1, progress=False)
    if distributed.get_rank() == where:
        do(None)
    trained.fit(data(6), epochs=1, progress=False)
    return 0


def after_another_trainer(line, where):
    """One process fails where the others build their second trainer."""
    os.open(line, os.O_WRONLY)
    trainer(None, None).fit(data(6), epochs=1, progress=False)
    if distributed.get_rank() == where:
        raise ValueError("the user's own")
    trainer(None, None).fit(data(6), epochs=1, progress=False)
    return 0


def only_one_evaluates(line):
    os.open(line, os.O_WRONLY)
    trained = trainer(None, None)
    trained.fit(data(6), epochs=1, progress=False)
    if trained.is_main_process:
        trained.evaluate(data(6))
    return 0


def does_not_come(line, where):
    os.open(line, os.O_WRONLY)
    if distributed.get_rank() == where:
        time.sleep(1000)
    trainer(None, None)
    return 0


def caught_and_tried_again(line):
    """All catch what went wrong, and train anew."""
    os.open(line, os.O_WRONLY)
    with contextlib.suppress(NonFiniteError, PeerFailedError):
        trainer(not_a_number, 1).fit(data(20), epochs=1, progress=False)
        return 1
    trainer(None, None).fit(data(6), epochs=1, progress=False)
    return 0


def interrupted_in_an_endless_epoch(line, replica):
    """One replica of the first stage is asked to stop; all do."""
    os.open(line, os.O_WRONLY)

    def batches():
        for number in itertools.count():
            if number == 5 and distributed.get_rank() == replica:
                signal.raise_signal(signal.SIGINT)
            yield from data(1)

    trained = trainer(None, None, stages=2, replicas=2)
    try:
        trained.fit(batches(), epochs=1, progress=False)
    except KeyboardInterrupt:
        return 0
    return 1


def freely(line, do, where):
    """An accident where stages run freely."""
    os.open(line, os.O_WRONLY)
    method = DGLAsync(head="mlp")
    trainer(do, where, method=method).fit(data(20), data(6), epochs=2, progress=False)
    return 0


def damaged_freely(line):
    """Packets are damaged on their way to a buffer, where any of them may be left out."""
    own = OutgoingMessage.begin

    def begin(shipment):
        wrong = shipment.kind == "activation" and shipment.number >= 3
        return own(damaged(shipment) if wrong else shipment)

    with patch.object(OutgoingMessage, "begin", begin):
        return freely(line, None, None)


def interrupted_freely(line):
    """The first stage is asked to stop, and all do, however many turns are left."""
    os.open(line, os.O_WRONLY)

    class Endless(list):
        def __iter__(self):
            for number in itertools.count():
                if number == 5:
                    signal.raise_signal(signal.SIGINT)
                yield from data(1)

    trained = trainer(None, None, method=DGLAsync(head="mlp"))
    try:
        trained.fit(Endless(data(1) * 10**6), epochs=1, progress=False)
    except KeyboardInterrupt:
        return 0
    return 1


def ends_much_later(line, where):
    """One process goes on for longer than others may let it wait."""
    os.open(line, os.O_WRONLY)
    trainer(None, None).fit(data(6), epochs=1, progress=False)
    if distributed.get_rank() == where:
        time.sleep(5)
    return 0


def without_accident(line):
    """Train; then 0 if every socket of this process is on loopback, and it has some."""
    os.open(line, os.O_WRONLY)
    trainer(None, None).fit(data(6), data(6), epochs=1, progress=False)
    found = set(addresses(os.getpid()))
    print(f"has sockets on {found}")
    return 0 if found and found <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"} else 1


if __name__ == "__main__":
    how, where, line = sys.argv[1:]
    if how == "destroys the groups":
        distributed.init_process_group("gloo")
    in_training(line, globals().get(how), int(where), {"stages": 2})
    if how == "destroys the groups":
        distributed.destroy_process_group()
