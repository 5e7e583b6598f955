"""Trainings that fail in one process; each process imports them by name.

The arguments of this file as a script are the fault, its stage and the named pipe to open.
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

from benchmarks.faults.packets import damage_packet
from hocket import Trainer
from hocket.distributed.world import world
from hocket.errors import NonFiniteError, PeerFailedError
from hocket.methods import DGLAsync
from hocket.transport.processes.message import OutgoingMessage
from hocket.transport.processes.reconnecting import ReconnectingLink
from unit.distributed.launched import socket_addresses

FAULTY_BATCH = 4
"""The batch whose forward fails."""


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


def leave_as_if_done(x):
    sys.exit()


class FaultyLayer(nn.Module):
    """Identity layer that applies a fault to one of its batches."""

    def __init__(self, fault, *, training):
        super().__init__()
        self.fault = fault
        self.for_training = training
        self.seen = 0

    def forward(self, x):
        if self.training != self.for_training:
            return x
        self.seen += 1
        return self.fault(x) if self.seen == FAULTY_BATCH + 1 else x


def data(count):
    make = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 4, generator=make), torch.randint(4, (8,), generator=make))
        for _ in range(count)
    ]


def build_trainer(
    fault=None,
    faulty_rank=None,
    *,
    stages=3,
    training=True,
    replicas=1,
    method=None,
    timeout_s=60,
):
    """Build a trainer whose network fails in the process of one rank, in training or not."""
    rank = distributed.get_rank() if distributed.is_initialized() else int(os.environ["RANK"])
    torch.manual_seed(0)
    modules = [
        nn.Sequential(
            nn.Linear(4, 4),
            FaultyLayer(fault if rank == faulty_rank else lambda x: x, training=training),
        )
        for _ in range(stages)
    ]
    return Trainer(
        modules,
        method=method,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        replicas=replicas,
        timeout_s=timeout_s,
        slow_timeout_s=60,
    )


def holding(pipe, work, *arguments):
    """Do this work while a named pipe is open, as long as the process runs."""
    os.open(pipe, os.O_WRONLY)
    return work(*arguments) or 0


def fit(trainer, batches=6, *validation, epochs=1):
    training = data(batches) if isinstance(batches, int) else batches
    trainer.fit(training, *validation, epochs=epochs, progress=False)
    return trainer


def fail_in_training(fault, faulty_rank, options):
    fit(build_trainer(fault, faulty_rank, **options), 20)


def fail_in_evaluation(fault, faulty_rank):
    fit(build_trainer(fault, faulty_rank, training=False), 6, data(20))


def fail_in_the_data():
    def broken():
        yield from data(FAULTY_BATCH)
        raise OSError("the disk is gone")

    fit(build_trainer(), broken())


def fail_before_the_trainer(fault, faulty_rank):
    if distributed.get_rank() == faulty_rank:
        fault(None)
    fit(build_trainer(), 20)


def fail_between_trainings(fault, faulty_rank):
    trained = fit(build_trainer())
    if distributed.get_rank() == faulty_rank:
        fault(None)
    fit(trained)


def fail_after_another_trainer(fault, faulty_rank):
    """Fail in one process while the others build their second trainer."""
    fit(build_trainer())
    fail_before_the_trainer(fault, faulty_rank)


def stop_while_connecting(faulty_rank):
    """Stop in one process while all of them form the process groups of a training."""
    if int(os.environ["RANK"]) == faulty_rank:
        patch.object(world, "ProcessGroups", lambda *_: stop(None)).start()
    build_trainer(timeout_s=3)


def evaluate_in_one_process():
    trained = fit(build_trainer(timeout_s=3))
    if trained.is_main_process:
        trained.evaluate(data(6))


def catch_and_train_again(slow_rank):
    """Catch the error in all processes, train again, and end one of them much later.

    Return 0 if this process has sockets, and all of them are on loopback.
    """
    with contextlib.suppress(NonFiniteError, PeerFailedError):
        fit(build_trainer(not_a_number, 1), 20)
        return 1
    fit(build_trainer(), 6, data(6))
    addresses = set(socket_addresses())
    print(f"has sockets on {addresses}")
    if distributed.get_rank() == slow_rank:
        time.sleep(5)
    return 0 if addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"} else 1


def endless(number_of_batches):
    """Batches without end, in which this process is interrupted, if it is to be."""
    for number in itertools.count():
        if number == number_of_batches:
            signal.raise_signal(signal.SIGINT)
        yield from data(1)


def interrupt_an_endless_epoch(replica):
    """Interrupt one replica of the first stage, which stops all processes."""
    trained = build_trainer(stages=2, replicas=2)
    with contextlib.suppress(KeyboardInterrupt):
        fit(trained, endless(5 if distributed.get_rank() == replica else None))
        return 1


def fail_asynchronously(fault, faulty_rank):
    method = DGLAsync(head="mlp")
    fit(build_trainer(fault, faulty_rank, method=method), 20, data(6), epochs=2)


def damage_asynchronously():
    """Damage packets on their way to a replay buffer, which may skip any packet."""
    original = OutgoingMessage.begin

    def begin(message):
        damaged = message.kind == "activation" and message.number >= 3
        return original(damage_packet(message) if damaged else message)

    with patch.object(OutgoingMessage, "begin", begin):
        fail_asynchronously(None, None)


def interrupt_asynchronously(starved):
    """Interrupt the first stage, which stops all, however many ticks are left.

    The last stage may be starved, and never gets a packet.
    """

    class Endless(list):
        def __iter__(self):
            return endless(5)

    trained = build_trainer(method=DGLAsync(head="mlp"))
    drop = starved and distributed.get_rank() == 1
    dropping = patch.object(ReconnectingLink, "send", lambda _link, _packet: False)
    with contextlib.suppress(KeyboardInterrupt), dropping if drop else contextlib.nullcontext():
        fit(trained, Endless(data(1) * 10**6))
        return 1


def destroy_the_groups():
    """Train twice in a group of the trainer, and then in one of the script; destroy each."""
    for _ in range(2):
        with build_trainer(stages=2) as trainer:
            fit(trainer)
        distributed.destroy_process_group()
    distributed.init_process_group("gloo")
    fit(build_trainer(stages=2))
    distributed.destroy_process_group()


if __name__ == "__main__":
    fault_name, faulty_rank, pipe = sys.argv[1:]
    rank = int(faulty_rank)
    if fault_name == "stop_while_connecting":
        holding(pipe, stop_while_connecting, rank)
    elif fault_name == "destroy_the_groups":
        holding(pipe, destroy_the_groups)
    else:
        holding(pipe, fail_in_training, globals()[fault_name], rank, {"stages": 2})
