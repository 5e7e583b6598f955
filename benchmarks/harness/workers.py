"""The processes of one row, which stay alive between its turns."""

import multiprocessing
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from benchmarks.harness.nodes import Node
from benchmarks.harness.worker import (
    Query,
    WorkerFailure,
    WorkerIdentity,
    query_peak_mib,
    serve_queries,
)
from benchmarks.harness.workload import Workload
from benchmarks.peers import Baseline
from hocket.errors import HocketError

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
        self._folder = tempfile.TemporaryDirectory(
            prefix="hocket-"
        )  # readable by this user only
        rendezvous = str(Path(self._folder.name) / "rendezvous")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(baseline.processes):
            identity = WorkerIdentity(
                baseline=baseline,
                workload=workload,
                rank=rank,
                rendezvous=rendezvous,
                timeout_s=timeout_s,
                node=nodes[rank] if nodes else None,
            )
            local, remote = context.Pipe()
            process = context.Process(
                target=serve_queries, args=(identity, remote), daemon=True
            )
            process.start()
            remote.close()  # so that the pipe ends when the process does
            self._pipes.append(local)
            self._processes.append(process)
        self.before_mib: list[float] = self._receive_answers()

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
        peaks = self.query(query_peak_mib)
        return [peak - before for peak, before in zip(peaks, self.before_mib, strict=True)]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            with suppress(BrokenPipeError):
                pipe.send(None)
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
                if isinstance(answers[rank], WorkerFailure):
                    self._fail(rank, answers[rank].traceback)
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
