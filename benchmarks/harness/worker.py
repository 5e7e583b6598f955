"""One process of a row: it joins the others, prepares its training and answers queries.

Between queries it sleeps in a read of its pipe, so that it does not disturb other rows.
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
from benchmarks.harness.process_memory import reset_peak
from benchmarks.harness.workload import Workload
from benchmarks.peers import Baseline, PreparedTraining
from hocket.distributed.world.joined_worlds import shutdown
from hocket.runs.peak_memory import peak_mib

Query = Callable[[PreparedTraining], Any]
"""A function of a training, which is sent to a process; its result is sent back."""


@dataclass(frozen=True)
class WorkerFailure:
    """The answer of a process that failed.

    Attributes:
        traceback: Traceback of the error.
    """

    traceback: str


@dataclass(frozen=True, kw_only=True)
class WorkerIdentity:
    """The data with which a process of a row joins the others.

    Attributes:
        baseline: The way to train.
        workload: Network and batch.
        rank: Rank of the process.
        rendezvous: The file in which the processes find each other.
        timeout_s: Longest time that it waits for the others, in seconds.
        node: Node in which it runs; None for this machine, over loopback.
    """

    baseline: Baseline
    workload: Workload
    rank: int
    rendezvous: str
    timeout_s: float
    node: Node | None = None


def serve_queries(identity: WorkerIdentity, pipe: Connection) -> None:
    """Run the process: answer queries until the pipe gives None or is closed."""
    # Other machines do not take part, and should not be able to.
    os.environ["GLOO_SOCKET_IFNAME"] = (
        "lo" if identity.node is None else identity.node.interface
    )
    # Ctrl-C reaches all processes of a terminal; the one that measures ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(identity.baseline.threads)
    try:
        if identity.node is not None:
            identity.node.enter()
        distributed.init_process_group(
            "gloo",
            store=distributed.FileStore(  # type: ignore[attr-defined]
                identity.rendezvous, identity.baseline.processes
            ),
            rank=identity.rank,
            world_size=identity.baseline.processes,
            timeout=timedelta(seconds=identity.timeout_s),
        )
        _warm_up()
        before_mib = reset_peak()
        training = identity.baseline.prepare(identity.workload, identity.rank)
        pipe.send(before_mib)
        while (query := pipe.recv()) is not None:
            pipe.send(query(training))
        shutdown()
        distributed.destroy_process_group()
        # Without the destructor of DistributedDataParallel: it holds the interpreter's lock and
        # waits for a thread of gloo, which may wait for that lock.
        os._exit(0)
    except EOFError:
        return  # the measuring process has ended
    except Exception:
        pipe.send(WorkerFailure(traceback.format_exc()))


def _warm_up() -> None:
    """Let libraries initialize themselves on a small step, whose time counts for no row."""
    small = Workload(
        network="resnet8", shape=(3, 8, 8), batch=2, stages=1, threads=1, channels_last=True
    )
    small.plain_step()()


def query_peak_mib(_: PreparedTraining) -> float:
    """Query: return the peak memory of the process, in MiB."""
    return peak_mib()
