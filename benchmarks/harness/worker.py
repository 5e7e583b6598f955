"""A process of a row: it joins the others, prepares its training and answers questions.

Between questions it sleeps in a read of its pipe, so that it takes nothing from the others.
"""

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed

from benchmarks.harness.nodes import Node
from benchmarks.harness.workload import Workload
from benchmarks.peers import Baseline, Training
from hocket.distributed.world import shutdown
from hocket.runs.peak_memory import peak_mib, reset_peak

Question = Callable[[Training], Any]
"""What a process is asked about its training; it is sent there, and its answer back."""


@dataclass(frozen=True)
class Failure:
    """An answer that is none.

    Attributes:
        trace: The traceback of what went wrong in the process.
    """

    trace: str


@dataclass(frozen=True, kw_only=True)
class WorkerIdentity:
    """A process's place in the world of its row.

    Attributes:
        peer: What it trains by.
        work: What it trains.
        rank: Which of the processes it is.
        meeting: The file in which the processes find each other.
        timeout_s: How long it waits for the others before it gives up.
        node: Where it works; without one, on this machine as it is, over loopback.
    """

    peer: Baseline
    work: Workload
    rank: int
    meeting: str
    timeout_s: float
    node: Node | None = None


def work_in(seat: WorkerIdentity, pipe: Connection) -> None:
    """What the process does, until the pipe gives None or is closed."""
    # No other machine takes part, and none should be able to.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if seat.node is None else seat.node.interface
    # Ctrl-C reaches all processes of a terminal; the one that measures ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(seat.peer.threads)
    try:
        if seat.node is not None:
            seat.node.enter()
        distributed.init_process_group(
            "gloo",
            store=distributed.FileStore(  # type: ignore[attr-defined]
                seat.meeting, seat.peer.processes
            ),
            rank=seat.rank,
            world_size=seat.peer.processes,
            timeout=timedelta(seconds=seat.timeout_s),
        )
        _set_up()
        before_mib = reset_peak()
        training = seat.peer.prepare(seat.work, seat.rank)
        pipe.send(before_mib)
        while (question := pipe.recv()) is not None:
            pipe.send(question(training))
        shutdown()
        distributed.destroy_process_group()
    except EOFError:
        return  # nobody asks any more
    except Exception:
        pipe.send(Failure(traceback.format_exc()))


def _set_up() -> None:
    """Let libraries set themselves up on a small step, so that no row is charged for it."""
    small = Workload(
        network="resnet8", shape=(3, 8, 8), batch=2, stages=1, threads=1, channels_last=True
    )
    small.plain()()


def highest(_: Training) -> float:
    """The question for the most memory that the process has held, in MiB."""
    return peak_mib()
