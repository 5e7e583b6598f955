"""The processes of one row, kept alive between its turns."""

import multiprocessing
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from benchmarks.harness.nodes import Node
from benchmarks.harness.worker import Failure, Question, WorkerIdentity, highest, work_in
from benchmarks.harness.workload import Workload
from benchmarks.peers import Baseline
from hocket.errors import HocketError

# Loaded once, in the server from which all processes are forked. Not this package: the server
# does not know this process's path, and might find another copy of it.
PRELOADED = ("torch", "torch.distributed.pipelining", "torch.utils.flop_counter")


class RowProcesses:
    """Processes that train by one peer; they sleep whenever they are asked nothing.

    Attributes:
        peer: What they train by.
        before_mib: Memory of each process before it prepared its training.
    """

    def __init__(
        self,
        label: str,
        peer: Baseline,
        work: Workload,
        *,
        timeout_s: float = 300,
        nodes: Sequence[Node] = (),
    ) -> None:
        """Start the processes, and wait until each has its training.

        Args:
            label: How errors name the row.
            peer: What the processes train by.
            work: What they train.
            timeout_s: How long one waits for another before it gives up.
            nodes: Where the processes work, in the order of ranks.

        Raises:
            HocketError: A process failed.
        """
        self.peer = peer
        self._label = label
        # Not fork, which copies locks of running threads; not spawn, which loads torch anew.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        self._folder = tempfile.TemporaryDirectory(prefix="hocket-")  # for this user only
        meeting = str(Path(self._folder.name) / "meeting")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(peer.processes):
            seat = WorkerIdentity(
                peer=peer,
                work=work,
                rank=rank,
                meeting=meeting,
                timeout_s=timeout_s,
                node=nodes[rank] if nodes else None,
            )
            own, theirs = context.Pipe()
            process = context.Process(target=work_in, args=(seat, theirs), daemon=True)
            process.start()
            theirs.close()  # so that the pipe ends when the process does
            self._pipes.append(own)
            self._processes.append(process)
        self.before_mib: list[float] = self._answers()

    def ask(self, question: Question) -> list[Any]:
        """What each process answers, by rank.

        Args:
            question: Called with each process's training, in the process.

        Raises:
            HocketError: A process failed; the processes are gone then.
        """
        for pipe in self._pipes:
            # One that is gone has left its reason in the pipe.
            with suppress(BrokenPipeError):
                pipe.send(question)
        return self._answers()

    def peak_mib(self) -> list[float]:
        """The most memory that each process has held since it began to prepare, in MiB.

        Network, batch and all that training adds; not PyTorch itself.

        Raises:
            HocketError: A process failed.
        """
        now = self.ask(highest)
        return [mib - before for mib, before in zip(now, self.before_mib, strict=True)]

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

    def _answers(self) -> list[Any]:
        """One answer of each process, by rank; the first failure ends them all."""
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
                    self._fail(rank, f"it ended with {code} and said nothing")
                if isinstance(answers[rank], Failure):
                    self._fail(rank, answers[rank].trace)
        return [answers[rank] for rank in range(len(self._pipes))]

    def _fail(self, rank: int, reason: str) -> None:
        self._kill()
        raise HocketError(f"process {rank} of the row {self._label!r} failed: {reason.strip()}")

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        self._end()

    def _end(self) -> None:
        """Leave nothing behind."""
        for process in self._processes:
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()
        self._processes, self._pipes = [], []
