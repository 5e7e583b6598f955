"""Supervision of the processes of one launch: exit codes, signals, restarts, and kills.

Processes learn of a failure from each other and end on their own; the supervisor gives them a
grace period and kills the rest. It forwards signals, and prints the causes that no process
could print itself.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Self

from hocket.distributed.failures.phases import RunningClock
from hocket.distributed.folder.last_words import write_last_words
from hocket.distributed.folder.launch_folder import LaunchFolder, Note
from hocket.distributed.folder.process_state import process_state
from hocket.distributed.folder.restart import (
    RENDEZVOUS_LOST,
    STOP_SIGNALS,
    RestartBudget,
    describe_loss,
    signal_name,
)
from hocket.distributed.launching.fork_server import ForkedProcess
from hocket.errors import HangError, PeerFailedError, PeerLostError
from hocket.standard_stream import StandardStream

START_TIMEOUT_S = 60.0
"""Seconds in which all processes must be connected to each other; they need about one."""
POLL_S = 1.0
"""How often to look at the folder of the launch, in seconds."""
SYMPTOMS = (PeerFailedError.exit_code, PeerLostError.exit_code, HangError.exit_code)
"""Exit codes of processes that have seen a failure, of which another one may be the cause.

Each may be caused by a process that ended with a later one of them, or with any other code.
"""
SETTLE_S = 1.0
"""Seconds by which the end of a process may be noticed later than a failure that it caused."""


class Supervisor:
    """Processes by rank; none outlives the ``with`` block.

    Args:
        grace_s: Seconds that the others may take to end after one has failed.
        folder: The folder without which the processes cannot communicate.
        start_process: Starts a process in place of a killed one; gets its rank and the number
            of the restart.
        restarts: Restarts that are left for that; None to replace none.
    """

    def __init__(
        self,
        grace_s: float,
        folder: LaunchFolder,
        start_process: Callable[[int, int], ForkedProcess],
        restarts: RestartBudget | None = None,
    ) -> None:
        self._workers: list[ForkedProcess] = []
        self._running: dict[int, int] = {}  # ranks by the sentinel that signals their end
        # A launcher that was suspended counts no time, as the others perhaps were, too.
        self._clock = RunningClock(2 * POLL_S)
        self._grace_s = grace_s
        self._start_deadline = START_TIMEOUT_S
        self._deadline = math.inf
        self._reason = ""  # why the processes that still run should end
        self._sent: set[tuple[int, int]] = set()  # ranks, and signals sent to them
        self._failure_code = 0  # exit code of the first process that failed
        self._has_cause = False  # True once a process has reported why it failed
        self._signal_code = 0  # exit code of the signal that stopped the launch
        self._interrupt_code = 0  # exit code of a Ctrl-C that was passed on
        self._folder = folder
        self._start_process = start_process
        self._restarts = restarts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.send(signal.SIGKILL)
        for worker in self._workers:
            worker.close()

    def add(self, worker: ForkedProcess) -> None:
        """Supervise the process of the next rank, which was just started."""
        self._running[worker.sentinel] = len(self._workers)
        self._workers.append(worker)

    def wait(self, signal_pipe: int) -> int:
        """Wait until all processes have ended; return the exit code of the launch.

        Args:
            signal_pipe: File descriptor from which the numbers of arriving signals are read.
        """
        while self._running:
            # Wait for the end of a process, a signal or a deadline.
            deadline = min(self._deadline, self._start_deadline)
            left_s = max(0.0, deadline - self._clock.seconds)
            ready = connection.wait([*self._running, signal_pipe], min(left_s, POLL_S))
            if signal_pipe in ready:
                self._read_signals(signal_pipe)
            codes = self._collect_exit_codes(ready)
            # Processes that failed because another one was killed may be noticed before it.
            end_s = time.monotonic() + SETTLE_S
            while self._running and any(codes.values()) and time.monotonic() < end_s:
                if min(codes.values()) < 0:
                    break
                late = connection.wait([*self._running], SETTLE_S)
                codes |= self._collect_exit_codes(late)
            # Deaths by signal have negative codes. They come first: no process caused them.
            for rank in sorted(codes, key=lambda rank: codes[rank] >= 0):
                self._handle_exit(rank, codes[rank])

            # Those that outlive a failure, or the folder of the launch, are killed.
            if self._running:
                self._kill_late()
            if self._running and not self._failure_code:
                self._kill_without_rendezvous()

        # All have ended: say why, and choose the exit code.
        if self._failure_code and connection.wait([signal_pipe], 0):  # of its last moment
            self._read_signals(signal_pipe)
        self._explain_failure()
        if describe_loss(self._failure_code) is not None:
            # A job whose end somebody has asked for is not started again after a loss.
            return self._signal_code or self._interrupt_code or self._failure_code
        return self._signal_code or self._failure_code

    def _read_signals(self, signal_pipe: int) -> None:
        """Handle the signals that have arrived: let processes save or end, or kill them."""
        for number in os.read(signal_pipe, 4096):
            if number not in STOP_SIGNALS:
                continue
            is_first = not (self._signal_code or self._interrupt_code)
            can_save = 0 in self._running.values() and self._has_begun()
            if number == signal.SIGINT and is_first and can_save:
                self._interrupt_code = 128 + number
                self._send_to([0], signal.SIGINT)
            else:
                self._signal_code = self._signal_code or 128 + number
                at_once = number == signal.SIGINT or not is_first
                request = signal.SIGKILL if at_once else signal.SIGTERM
                self._send_to(self._running.values(), request)
            self._end_others(f"the launcher received {signal.Signals(number).name}")

    def _collect_exit_codes(self, ready: Sequence[object]) -> dict[int, int]:
        """Return the exit codes, by rank, of the processes that have ended."""
        ended = [self._running.pop(s) for s in list(self._running) if s in ready]
        codes = {rank: self._workers[rank].wait() for rank in ended}
        if None in codes.values() and not self._failure_code:
            print_message(
                "the server process that had forked all others was killed, perhaps by the "
                "kernel because memory ran out"
            )
            self._failure_code = 128 + signal.SIGKILL
        return {rank: code for rank, code in codes.items() if code is not None}

    def _has_begun(self) -> bool:
        """Return True if all processes were connected, so that there may be work to save."""
        return any(self._folder.has(Note.JOINED, rank) for rank in range(len(self._workers)))

    def _handle_exit(self, rank: int, code: int) -> None:
        requested = (rank, -code) in self._sent
        if code == 0 or (requested and code == -signal.SIGKILL):
            return
        if not requested and code < 0:
            if self._try_restart(rank, code):
                return
            print_message(_describe_death(rank, code))
            self._has_cause |= not self._has_begun()  # those that connect to it know no more
            message = f"process {rank} was ended by {signal_name(-code)}"
            self._folder.write(Note.LOST, text=message)
        if _precedence(code) > _precedence(self._failure_code):
            self._failure_code = code if code > 0 else 128 - code
        self._has_cause |= code > 0 and code not in SYMPTOMS
        cause = f"code {code}" if code > 0 else signal_name(-code)
        self._end_others(f"process {rank} ended with {cause}")

    def _try_restart(self, rank: int, code: int) -> bool:
        """Replace a process that was killed, if all are detached and a restart is left."""
        if (restarts := self._restarts) is None:
            return False
        ending = self._signal_code or self._failure_code or self._deadline < math.inf
        detached = self._folder.all_detached(len(self._workers))
        if ending or not detached or not restarts.take():
            self._folder.write(Note.UNRECOVERABLE)
            return False
        print_message(f"{_describe_death(rank, code)}; it alone is restarted, {restarts}")
        worker = self._start_process(rank, restarts.used)
        self._workers[rank].close()
        self._workers[rank] = worker
        self._running[worker.sentinel] = rank
        return True

    def _end_others(self, reason: str) -> None:
        """Let the processes that still run end; kill them if there is nothing to wait for."""
        if not self._has_begun():
            self._send_to(self._running.values(), signal.SIGKILL)
        elif self._deadline == math.inf:
            self._deadline = self._clock.seconds + self._grace_s
            self._reason = reason

    def _kill_late(self) -> None:
        """Kill processes that hang: at the start, at the end, or without an answer."""
        now_s = self._clock.seconds
        running = sorted(self._running.values())
        if self._start_deadline < math.inf:
            joined = {rank for rank in running if self._folder.has(Note.JOINED, rank)}
            if joined == set(running):
                self._start_deadline = math.inf
            elif now_s >= self._start_deadline:
                self._kill_unconnected([rank for rank in running if rank not in joined])
        if self._deadline < math.inf:
            silent = [rank for rank in running if self._folder.has(Note.SILENT, rank)]
            self._kill_hung(silent, "it did not answer the others")
        if now_s >= self._deadline:
            self._kill_hung(running, f"it still ran {self._grace_s:g} s after {self._reason}")
            self._deadline = math.inf

    def _kill_unconnected(self, ranks: Sequence[int]) -> None:
        """Kill all processes after a start that took too long, and name those at fault."""
        missing = [rank for rank in ranks if not self._folder.has(Note.STARTED, rank)]
        folders = {rank: Path("/proc", str(self._workers[rank].pid)) for rank in ranks}
        stopped = [rank for rank in ranks if process_state(folders[rank]) == "T"]
        self._kill_hung(
            missing or stopped or ranks,
            f"it was not connected to the others {START_TIMEOUT_S:g} s after its start",
        )
        self._failure_code = self._failure_code or HangError.exit_code
        self._start_deadline = math.inf
        self._send_to(self._running.values(), signal.SIGKILL)

    def _kill_hung(self, ranks: Iterable[int], reason: str) -> None:
        for rank in ranks:
            if (rank, signal.SIGKILL) not in self._sent:
                print_message(f"process {rank} hung: {reason}, and was killed")
                self._failure_code = self._failure_code or HangError.exit_code
                self._send_to([rank], signal.SIGKILL)

    def _kill_without_rendezvous(self) -> None:
        """Kill all processes if they cannot communicate through the folder any more."""
        if not self._folder.rendezvous.exists():
            print_message(
                f"{str(self._folder.rendezvous)!r}, through which the processes communicate, "
                "was deleted, perhaps by a cleaner of temporary files; none could report a "
                "failure or seal a checkpoint any more, so all were killed"
            )
        elif (problem := self._folder.find_problem()) is not None:
            self._print_problem(problem)
        else:
            return
        self._failure_code = RENDEZVOUS_LOST
        self._send_to(self._running.values(), signal.SIGKILL)

    def _print_problem(self, problem: OSError) -> None:
        print_message(
            f"nothing can be written to {str(self._folder.path)!r}, through which the "
            f"processes communicate: {problem}; make room there, or set TMPDIR"
        )

    def _explain_failure(self) -> None:
        """Print the cause of a failure for which no process was to blame."""
        symptom = self._folder.read(Note.SYMPTOM)
        if self._failure_code in SYMPTOMS and (problem := self._folder.find_problem()):
            self._print_problem(problem)
            self._failure_code = RENDEZVOUS_LOST
        elif symptom is not None and not self._has_cause:
            write_last_words(symptom)

    def _send_to(self, ranks: Iterable[int], number: signal.Signals) -> None:
        for rank in ranks:
            self._sent.add((rank, number))
            self._workers[rank].send(number)


def print_message(message: str) -> None:
    """Print a message of the launcher on standard error."""
    print(f"hocket: {message}", file=StandardStream("stderr"), flush=True)


def _precedence(code: int) -> int:
    """Return a number that is larger for what may be the cause of what has a smaller one."""
    if code == 0:
        return -1
    return SYMPTOMS.index(code) if code in SYMPTOMS else len(SYMPTOMS)


def _describe_death(rank: int, code: int) -> str:
    """Describe a death by a signal, which the process itself could not report."""
    text = f"process {rank} was ended by {signal_name(-code)}"
    if code != -signal.SIGKILL:
        return text
    return (
        f"{text}, perhaps by the kernel because memory ran out: see `dmesg` and memory.events "
        "of the cgroup; smaller batches or fewer processes need less"
    )
