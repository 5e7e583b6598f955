"""The processes of one row, which stay alive between its turns.

Each joins the others, prepares its training and answers queries. Between queries it sleeps in a
read of its pipe, so that it does not disturb other rows.
"""

import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import distributed

from benchmarks.harness.memory import reset_peak
from benchmarks.harness.nodes import INTERFACE, Node
from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import Baseline, PreparedTraining
from hocket.distributed.world.joined_worlds import shutdown
from hocket.errors import HocketError
from hocket.runs.environment import peak_mib

Query = Callable[[PreparedTraining], Any]
"""A function of a training, which is sent to a process; its result is sent back."""

# Imported once, in the server from which all processes are forked. This package is not: the
# server does not know the path of this process, and might import another copy.
PRELOADED = ("torch", "torch.distributed.pipelining", "torch.utils.flop_counter")


class RowProcesses:
    """Processes that train together; they sleep between queries.

    Attributes:
        baseline: The way in which they train.
        before_mib: Memory of each process before it prepared its training.
    """

    def __init__(
        self,
        label: str,
        baseline: Baseline,
        workload: Workload,
        *,
        timeout_s: float = 300,
        nodes: Sequence[Node] = (),
    ) -> None:
        """Start the processes, and wait until each has prepared its training.

        Args:
            label: Name of the row in errors.
            baseline: The way to train.
            workload: Network and batch.
            timeout_s: Longest time that a process waits for another, in seconds.
            nodes: Nodes in which the processes run, in the order of ranks.

        Raises:
            HocketError: A process failed.
        """
        self.baseline = baseline
        self._label = label
        # fork would copy locks of running threads, spawn would import torch anew.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        # Which this user alone can read.
        self._folder = tempfile.TemporaryDirectory(prefix="hocket-")
        rendezvous = str(Path(self._folder.name) / "rendezvous")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(baseline.processes):
            local, remote = context.Pipe()
            serve = partial(
                _serve_queries,
                baseline,
                workload,
                rank,
                rendezvous=rendezvous,
                timeout_s=timeout_s,
                node=nodes[rank] if nodes else None,
                pipe=remote,
            )
            process = context.Process(target=serve, daemon=True)
            process.start()
            remote.close()  # so that the pipe ends when the process does
            self._pipes.append(local)
            self._processes.append(process)
        self.before_mib: list[float] = self._receive_answers()

    @property
    def last_process(self) -> int:
        """Number of the process with the highest rank."""
        number = self._processes[-1].pid
        assert number is not None, "it was started"
        return number

    def query(self, query: Query) -> list[Any]:
        """Return the answer of each process, by rank.

        Args:
            query: The function that each process calls with its training.

        Raises:
            HocketError: A process failed; all processes have been ended.
        """
        for pipe in self._pipes:
            # A process that has ended has left its reason in the pipe.
            with suppress(BrokenPipeError):
                pipe.send(query)
        return self._receive_answers()

    def peak_mib(self) -> list[float]:
        """Return the peak memory of each process since it began to prepare, in MiB.

        It includes network, batch and everything that training adds, but not PyTorch itself.

        Raises:
            HocketError: A process failed.
        """
        peaks = self.query(_query_peak_mib)
        return [peak - before for peak, before in zip(peaks, self.before_mib, strict=True)]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            with suppress(BrokenPipeError):
                pipe.send(None)
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._kill()

    def _receive_answers(self) -> list[Any]:
        """Return one answer of each process, by rank; the first failure ends all processes."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            left = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            for pipe in cast(list[Connection], wait(left)):
                rank = self._pipes.index(pipe)
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    self._processes[rank].join()
                    code = self._processes[rank].exitcode
                    self._fail(rank, f"it ended with {code} and no answer")
                if isinstance(answers[rank], _Failure):
                    self._fail(rank, answers[rank])
        return [answers[rank] for rank in range(len(self._pipes))]

    def _fail(self, rank: int, reason: str) -> None:
        self._kill()
        raise HocketError(f"process {rank} of the row {self._label!r} failed: {reason.strip()}")

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        self._end()

    def _end(self) -> None:
        """Wait for the processes, and release everything."""
        for process in self._processes:
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()
        self._processes, self._pipes = [], []


class _Failure(str):
    """The answer of a process that failed: the traceback of its error."""


def _serve_queries(
    baseline: Baseline,
    workload: Workload,
    rank: int,
    *,
    rendezvous: str,
    timeout_s: float,
    node: Node | None,
    pipe: Connection,
) -> None:
    """Run one process: answer queries until the pipe gives None or is closed.

    The processes find each other in the file ``rendezvous``. Without a node they run on this
    machine, over loopback.
    """
    # Other machines do not take part, and should not be able to.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if node is None else INTERFACE
    # Ctrl-C reaches all processes of a terminal; the one that measures ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(baseline.threads)
    try:
        # Join the others.
        if node is not None:
            node.enter()
        distributed.init_process_group(
            "gloo",
            store=distributed.FileStore(  # type: ignore[attr-defined]
                rendezvous, baseline.processes
            ),
            rank=rank,
            world_size=baseline.processes,
            timeout=timedelta(seconds=timeout_s),
        )
        # Prepare the training, and answer.
        _warm_up()
        before_mib = reset_peak()
        training = baseline.prepare(workload, rank)
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
        pipe.send(_Failure(traceback.format_exc()))


def _warm_up() -> None:
    """Let libraries initialize themselves on a small step, whose time counts for no row."""
    small = Workload(
        network="resnet8", shape=(3, 8, 8), batch=2, stages=1, threads=1, channels_last=True
    )
    small.plain_step()()


def _query_peak_mib(_: PreparedTraining) -> float:
    """Query: return the peak memory of the process, in MiB."""
    return peak_mib()
