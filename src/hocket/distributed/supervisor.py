"""Supervision of the processes of one launch: exit codes, signals, restarts, and kills.

Processes learn of a failure from each other and end on their own; the supervisor gives them a
grace period and kills the rest. It forwards signals, and prints the causes that no process
could print itself.
"""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from hocket.distributed.rejoin_files import RejoinMarkers
from hocket.distributed.restart import RENDEZVOUS_LOST, RestartBudget
from hocket.distributed.worker_main import PEER_FAILED, STOP_SIGNALS

# Exit code that multiprocessing gives when the server that forked a process is gone.
_UNKNOWN_EXIT = 255
POLL_S = 1.0
"""How often to look whether the rendezvous file is still there, in seconds."""
SETTLE_S = 0.1
"""Seconds by which the end of a process may be noticed later than a failure that it caused."""


@dataclass(frozen=True)
class RejoinPolicy:
    """Conditions under which a killed process is replaced alone.

    Attributes:
        budget: Restarts that are left.
        build_process: Builds the new process from its rank and the number of the restart.
        markers: Marker files of the processes.
    """

    budget: RestartBudget
    build_process: Callable[[int, int], BaseProcess]
    markers: RejoinMarkers


class Supervisor:
    """Processes by rank; none outlives the ``with`` block.

    Args:
        grace_s: Seconds that the others may take to end after one has failed.
        rendezvous: The file without which the processes cannot communicate.
        rejoin: Conditions for replacing a killed process; None to replace none.
    """

    def __init__(
        self, grace_s: float, rendezvous: Path, rejoin: RejoinPolicy | None = None
    ) -> None:
        self._workers: list[BaseProcess] = []
        self._running: dict[int, int] = {}  # ranks by the sentinel that signals their end
        self._grace_s = grace_s
        self._deadline = math.inf
        self._reason = ""  # why the processes that still run should end
        self._sent: set[tuple[int, int]] = set()  # ranks, and signals sent to them
        self._failure_code = 0  # exit code of the first process that failed
        self._signal_code = 0  # exit code of the signal that stopped the launch
        self._rendezvous = rendezvous
        self._rejoin = rejoin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _send(worker, signal.SIGKILL)
            worker.join()
            worker.close()

    def start(self, worker: BaseProcess) -> None:
        """Start the process of the next rank."""
        worker.start()
        self._running[worker.sentinel] = len(self._workers)
        self._workers.append(worker)

    def wait(self, signal_pipe: int) -> int:
        """Wait until all processes have ended; return the exit code of the launch.

        Args:
            signal_pipe: File descriptor from which the numbers of arriving signals are read.
        """
        while self._running:
            left_s = max(0.0, self._deadline - time.monotonic())
            ready = connection.wait([*self._running, signal_pipe], min(left_s, POLL_S))
            if signal_pipe in ready:
                for number in os.read(signal_pipe, 4096):
                    self._handle_signal(number)
            codes = self._collect_exit_codes(ready)
            if any(codes.values()):
                # A process that failed because another one was killed may be noticed first.
                late = connection.wait([*self._running], SETTLE_S)
                codes |= self._collect_exit_codes(late)
            # Deaths by signal have negative codes. They come first: no process caused them.
            for rank in sorted(codes, key=lambda rank: codes[rank] >= 0):
                self._handle_exit(rank, codes[rank])
            if self._running and time.monotonic() >= self._deadline:
                self._kill_hung()
            if self._running and not self._failure_code and not self._rendezvous.exists():
                self._kill_without_rendezvous()
        return self._signal_code or self._failure_code

    def _collect_exit_codes(self, ready: Sequence[object]) -> dict[int, int]:
        """Return the exit codes, by rank, of the processes that have ended."""
        ended = [self._running.pop(s) for s in list(self._running) if s in ready]
        return {rank: self._workers[rank].exitcode or 0 for rank in ended}

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGINT:
            first = not self._signal_code and not self._was_sent(number)
            if first and 0 in self._running.values():
                self._send_to([0], signal.SIGINT)
            else:
                self._signal_code = self._signal_code or 128 + number
                self._send_to(self._running.values(), signal.SIGKILL)
        elif number in STOP_SIGNALS and not self._signal_code:
            self._signal_code = 128 + number
            self._send_to(self._running.values(), signal.SIGTERM)
            self._start_grace_period(f"the launcher received {signal.Signals(number).name}")

    def _was_sent(self, number: int) -> bool:
        return any(number == sent for _, sent in self._sent)

    def _handle_exit(self, rank: int, code: int) -> None:
        requested = (rank, -code) in self._sent
        if code == 0 or (requested and code == -signal.SIGKILL):
            return
        if not requested and code < 0 and self._try_restart(rank, code):
            return
        if not requested and (code < 0 or code == _UNKNOWN_EXIT):
            _print_message(_describe_exit(rank, code))
        if self._failure_code in (0, PEER_FAILED):
            self._failure_code = code if code > 0 else 128 - code
        cause = f"code {code}" if code > 0 else signal.Signals(-code).name
        self._start_grace_period(f"process {rank} ended with {cause}")

    def _try_restart(self, rank: int, code: int) -> bool:
        """Start a process in the place of one that was killed, if the policy allows it."""
        if (rejoin := self._rejoin) is None:
            return False
        ending = self._signal_code or self._failure_code or self._deadline < math.inf
        if ending or not rejoin.markers.all_detached or not rejoin.budget.take():
            rejoin.markers.mark_unrecoverable()
            return False
        _print_message(f"{_describe_exit(rank, code)}; it alone is restarted, {rejoin.budget}")
        self._workers[rank].join()
        self._workers[rank].close()
        self._workers[rank] = worker = rejoin.build_process(rank, rejoin.budget.used)
        worker.start()
        self._running[worker.sentinel] = rank
        return True

    def _start_grace_period(self, reason: str) -> None:
        if self._deadline == math.inf:
            self._deadline = time.monotonic() + self._grace_s
            self._reason = reason

    def _kill_hung(self) -> None:
        for rank in sorted(self._running.values()):
            _print_message(
                f"process {rank} hung: it still ran {self._grace_s:g} s after {self._reason}, "
                "and was killed"
            )
        self._send_to(self._running.values(), signal.SIGKILL)
        self._deadline = math.inf

    def _kill_without_rendezvous(self) -> None:
        _print_message(
            f"{str(self._rendezvous)!r}, through which the processes communicate, was deleted, "
            "perhaps by a cleaner of temporary files; none could report a failure or seal a "
            "checkpoint any more, so all were killed"
        )
        self._failure_code = RENDEZVOUS_LOST
        self._send_to(self._running.values(), signal.SIGKILL)

    def _send_to(self, ranks: Iterable[int], number: signal.Signals) -> None:
        for rank in ranks:
            self._sent.add((rank, number))
            _send(self._workers[rank], number)


def _send(worker: BaseProcess, number: signal.Signals) -> None:
    if worker.exitcode is not None or worker.pid is None:
        return
    # A worker leads a process group: the processes that it started are killed with it.
    for send in (os.killpg, os.kill) if number == signal.SIGKILL else (os.kill,):
        with suppress(ProcessLookupError):
            send(worker.pid, number)


def _print_message(message: str) -> None:
    print(f"hocket: {message}", file=sys.stderr, flush=True)


def _describe_exit(rank: int, code: int) -> str:
    """Describe an end that the process itself could not report."""
    if code == _UNKNOWN_EXIT:
        return (
            f"process {rank} ended with code {code}; unless that is its own code, the server "
            "process that had forked it was killed"
        )
    text = f"process {rank} was ended by {signal.Signals(-code).name}"
    if code != -signal.SIGKILL:
        return text
    return (
        f"{text}, perhaps by the kernel because memory ran out: see `dmesg` and memory.events "
        "of the cgroup; smaller batches or fewer processes need less"
    )
