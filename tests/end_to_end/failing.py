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
    fault, faulty_rank, *, stages=3, training=True, replicas=1, method=None, slow_timeout_s=60
):
    """Build a trainer whose network fails in the process of one rank.

    Args:
        fault: Function of the value of the forward; None for no fault.
        faulty_rank: Rank of the process that fails.
        stages: Number of stages.
        training: Whether to fail in training, otherwise in evaluation.
        replicas: Number of replicas of each stage.
        method: Method of the trainer.
        slow_timeout_s: Limit of what is no training step.
    """
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
        timeout_s=3,
        slow_timeout_s=slow_timeout_s,
    )


def fail_in_training(pipe, fault, faulty_rank, options):
    """Fail in the forward of a batch.

    Args:
        pipe: Path of a named pipe, which stays open as long as the process runs.
        fault: Function of the value of the forward.
        faulty_rank: Rank of the process that fails.
        options: Options of the trainer.
    """
    os.open(pipe, os.O_WRONLY)
    build_trainer(fault, faulty_rank, **options).fit(data(20), epochs=1, progress=False)
    return 0


def fail_in_evaluation(pipe, fault, faulty_rank):
    os.open(pipe, os.O_WRONLY)
    build_trainer(fault, faulty_rank, training=False).fit(
        data(6), data(20), epochs=1, progress=False
    )
    return 0


def fail_in_the_data(pipe):
    os.open(pipe, os.O_WRONLY)

    def broken():
        yield from data(FAULTY_BATCH)
        raise OSError("the disk is gone")

    build_trainer(None, None).fit(broken(), epochs=1, progress=False)
    return 0


def fail_before_the_trainer(pipe, faulty_rank):
    os.open(pipe, os.O_WRONLY)
    if distributed.get_rank() == faulty_rank:
        raise ValueError("the user's own")
    build_trainer(None, None).fit(data(20), epochs=1, progress=False)
    return 0


def die_before_the_trainer(pipe, faulty_rank):
    os.open(pipe, os.O_WRONLY)
    if distributed.get_rank() == faulty_rank:
        kill(None)
    build_trainer(None, None).fit(data(20), epochs=1, progress=False)
    return 0


def fail_between_trainings(pipe, fault, faulty_rank):
    os.open(pipe, os.O_WRONLY)
    trained = build_trainer(None, None)
    trained.fit(data(6), epochs=1, progress=False)
    if distributed.get_rank() == faulty_rank:
        fault(None)
    trained.fit(data(6), epochs=1, progress=False)
    return 0


def fail_after_another_trainer(pipe, faulty_rank):
    """Fail in one process while the others build their second trainer."""
    os.open(pipe, os.O_WRONLY)
    build_trainer(None, None).fit(data(6), epochs=1, progress=False)
    if distributed.get_rank() == faulty_rank:
        raise ValueError("the user's own")
    build_trainer(None, None).fit(data(6), epochs=1, progress=False)
    return 0


def stop_while_connecting(pipe, faulty_rank):
    """Stop in one process while all of them form the process groups of a training."""
    os.open(pipe, os.O_WRONLY)
    if int(os.environ["RANK"]) == faulty_rank:
        patch.object(world, "ProcessGroups", lambda *_: stop(None)).start()
    build_trainer(None, None)
    return 0


def evaluate_in_one_process(pipe):
    os.open(pipe, os.O_WRONLY)
    trained = build_trainer(None, None)
    trained.fit(data(6), epochs=1, progress=False)
    if trained.is_main_process:
        trained.evaluate(data(6))
    return 0


def sleep_before_the_trainer(pipe, faulty_rank):
    os.open(pipe, os.O_WRONLY)
    if distributed.get_rank() == faulty_rank:
        time.sleep(1000)
    build_trainer(None, None, slow_timeout_s=3)
    return 0


def catch_and_train_again(pipe):
    """Catch the error in all processes, and train again."""
    os.open(pipe, os.O_WRONLY)
    with contextlib.suppress(NonFiniteError, PeerFailedError):
        build_trainer(not_a_number, 1).fit(data(20), epochs=1, progress=False)
        return 1
    build_trainer(None, None).fit(data(6), epochs=1, progress=False)
    return 0


def interrupt_an_endless_epoch(pipe, replica):
    """Interrupt one replica of the first stage, which stops all processes."""
    os.open(pipe, os.O_WRONLY)

    def batches():
        for number in itertools.count():
            if number == 5 and distributed.get_rank() == replica:
                signal.raise_signal(signal.SIGINT)
            yield from data(1)

    trained = build_trainer(None, None, stages=2, replicas=2)
    try:
        trained.fit(batches(), epochs=1, progress=False)
    except KeyboardInterrupt:
        return 0
    return 1


def fail_asynchronously(pipe, fault, faulty_rank):
    """Fail in an asynchronous training.

    Args:
        pipe: Path of a named pipe, which stays open as long as the process runs.
        fault: Function of the value of the forward.
        faulty_rank: Rank of the process that fails.
    """
    os.open(pipe, os.O_WRONLY)
    method = DGLAsync(head="mlp")
    build_trainer(fault, faulty_rank, method=method).fit(
        data(20), data(6), epochs=2, progress=False
    )
    return 0


def damage_asynchronously(pipe):
    """Damage packets on their way to a replay buffer, which may skip any packet."""
    original = OutgoingMessage.begin

    def begin(message):
        damaged = message.kind == "activation" and message.number >= 3
        return original(damage_packet(message) if damaged else message)

    with patch.object(OutgoingMessage, "begin", begin):
        return fail_asynchronously(pipe, None, None)


def interrupt_asynchronously(pipe, starved):
    """Interrupt the first stage, which stops all, however many ticks are left.

    Args:
        pipe: Path of the named pipe to open.
        starved: The last stage never gets a packet.
    """
    os.open(pipe, os.O_WRONLY)

    class Endless(list):
        def __iter__(self):
            for number in itertools.count():
                if number == 5:
                    signal.raise_signal(signal.SIGINT)
                yield from data(1)

    trained = build_trainer(None, None, method=DGLAsync(head="mlp"))
    drop = starved and distributed.get_rank() == 1
    dropping = patch.object(ReconnectingLink, "send", lambda _link, _packet: False)
    try:
        with dropping if drop else contextlib.nullcontext():
            trained.fit(Endless(data(1) * 10**6), epochs=1, progress=False)
    except KeyboardInterrupt:
        return 0
    return 1


def end_much_later(pipe, faulty_rank):
    """Let one process run on for longer than the time-out after the training."""
    os.open(pipe, os.O_WRONLY)
    build_trainer(None, None).fit(data(6), epochs=1, progress=False)
    if distributed.get_rank() == faulty_rank:
        time.sleep(5)
    return 0


def train_without_fault(pipe):
    """Train; return 0 if this process has sockets, and all of them are on loopback."""
    os.open(pipe, os.O_WRONLY)
    build_trainer(None, None).fit(data(6), data(6), epochs=1, progress=False)
    addresses = set(socket_addresses(os.getpid()))
    print(f"has sockets on {addresses}")
    return 0 if addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"} else 1


if __name__ == "__main__":
    fault_name, faulty_rank, pipe = sys.argv[1:]
    if fault_name == "stop_while_connecting":
        stop_while_connecting(pipe, int(faulty_rank))
    if fault_name == "destroys the groups":
        distributed.init_process_group("gloo")
    fail_in_training(pipe, globals().get(fault_name), int(faulty_rank), {"stages": 2})
    if fault_name == "destroys the groups":
        distributed.destroy_process_group()
