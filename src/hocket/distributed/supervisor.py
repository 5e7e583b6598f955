"""The workers of one launch: who runs, who failed first, and how all of them end.

Workers learn of a failure from each other and end on their own; the launcher gives them a
little time and kills the rest. It passes signals on, and tells what no worker could.
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
from hocket.distributed.restart import UNMEETABLE, Restarts
from hocket.distributed.worker_main import HELD_BACK, PEER_FAILED

# What multiprocessing gives when the server that forked a process is gone.
_NEVER_TOLD = 255
LOOK_S = 1.0
"""How often to look whether the file through which processes meet is there."""
SETTLE_S = 0.1
"""How much later the end of a process may be told of than that of one which failed for it."""


@dataclass(frozen=True)
class RejoinPolicy:
    """What it takes for a process that is killed to come back alone.

    Attributes:
        restarts: How often.
        process: Makes the one that takes the place of a rank, with its number among restarts.
        markers: Of all processes.
    """

    restarts: Restarts
    process: Callable[[int, int], BaseProcess]
    markers: RejoinMarkers


class Supervisor:
    """Processes by rank; none outlives the ``with`` block.

    Args:
        grace_s: How long the others may take to end after one has failed.
        meeting: The file without which they cannot tell each other anything.
        back: How one that is killed comes back; None where none does.
    """

    def __init__(self, grace_s: float, meeting: Path, back: RejoinPolicy | None = None) -> None:
        self._workers: list[BaseProcess] = []
        self._running: dict[int, int] = {}  # ranks by what becomes readable as they end
        self._grace_s = grace_s
        self._deadline = math.inf
        self._reason = ""  # why those still running should end
        self._sent: set[tuple[int, int]] = set()  # ranks, and signals sent to them
        self._failed = 0  # exit code of the first that failed
        self._stopped = 0  # exit code of the signal that ended everything
        self._meeting = meeting
        self._back = back

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

    def until_all_ended(self, bell: int) -> int:
        """The exit code of all; signals are heard when ``bell`` is readable."""
        while self._running:
            left_s = max(0.0, self._deadline - time.monotonic())
            ready = connection.wait([*self._running, bell], min(left_s, LOOK_S))
            if bell in ready:
                for number in os.read(bell, 4096):
                    self._heard(number)
            codes = self._codes(ready)
            if any(codes.values()):
                # Who failed because another one was killed may be told of before that one.
                codes |= self._codes(connection.wait([*self._running], SETTLE_S))
            # Deaths by signal have negative codes. They come first: nobody else caused them.
            for rank in sorted(codes, key=lambda rank: codes[rank] >= 0):
                self._ended(rank, codes[rank])
            if self._running and time.monotonic() >= self._deadline:
                self._kill_hung()
            if self._running and not self._failed and not self._meeting.exists():
                self._kill_strangers()
        return self._stopped or self._failed

    def _codes(self, ready: Sequence[object]) -> dict[int, int]:
        """The exit codes, by rank, of those that have ended."""
        ended = [self._running.pop(s) for s in list(self._running) if s in ready]
        return {rank: self._workers[rank].exitcode or 0 for rank in ended}

    def _heard(self, number: int) -> None:
        if number == signal.SIGINT:
            if 0 in self._running.values() and not self._stopped and not self._was_sent(number):
                self._pass_on([0], signal.SIGINT)
            else:
                self._stopped = self._stopped or 128 + number
                self._pass_on(self._running.values(), signal.SIGKILL)
        elif number in HELD_BACK and not self._stopped:
            self._stopped = 128 + number
            self._pass_on(self._running.values(), signal.SIGTERM)
            self._end_soon(f"{signal.Signals(number).name} came")

    def _was_sent(self, number: int) -> bool:
        return any(number == sent for _, sent in self._sent)

    def _ended(self, rank: int, code: int) -> None:
        asked = (rank, -code) in self._sent
        if code == 0 or (asked and code == -signal.SIGKILL):
            return
        if not asked and code < 0 and self._start_again(rank, code):
            return
        if not asked and (code < 0 or code == _NEVER_TOLD):
            _tell(_end(rank, code))
        if self._failed in (0, PEER_FAILED):
            self._failed = code if code > 0 else 128 - code
        how = f"code {code}" if code > 0 else signal.Signals(-code).name
        self._end_soon(f"process {rank} ended with {how}")

    def _start_again(self, rank: int, code: int) -> bool:
        """Start a process in the place of one that was killed, if it can come back alone."""
        if (back := self._back) is None:
            return False
        ending = self._stopped or self._failed or self._deadline < math.inf
        if ending or not back.markers.all_detached or not back.restarts.take():
            back.markers.mark_unrecoverable()
            return False
        _tell(f"{_end(rank, code)}; it alone is started again, {back.restarts}")
        self._workers[rank].join()
        self._workers[rank].close()
        self._workers[rank] = worker = back.process(rank, back.restarts.taken)
        worker.start()
        self._running[worker.sentinel] = rank
        return True

    def _end_soon(self, reason: str) -> None:
        if self._deadline == math.inf:
            self._deadline = time.monotonic() + self._grace_s
            self._reason = reason

    def _kill_hung(self) -> None:
        for rank in sorted(self._running.values()):
            _tell(
                f"process {rank} hung: it still ran {self._grace_s:g} s after {self._reason}, "
                "and was killed"
            )
        self._pass_on(self._running.values(), signal.SIGKILL)
        self._deadline = math.inf

    def _kill_strangers(self) -> None:
        _tell(
            f"{str(self._meeting)!r}, through which the processes meet, was taken away, as by "
            "a cleaner of temporary files; none could tell of a failure or seal a checkpoint "
            "any more, so all were killed"
        )
        self._failed = UNMEETABLE
        self._pass_on(self._running.values(), signal.SIGKILL)

    def _pass_on(self, ranks: Iterable[int], number: signal.Signals) -> None:
        for rank in ranks:
            self._sent.add((rank, number))
            _send(self._workers[rank], number)


def _send(worker: BaseProcess, number: signal.Signals) -> None:
    if worker.exitcode is not None or worker.pid is None:
        return
    # A worker that has begun leads a group: what it started is not to outlive its kill.
    for send in (os.killpg, os.kill) if number == signal.SIGKILL else (os.kill,):
        with suppress(ProcessLookupError):
            send(worker.pid, number)


def _tell(what: str) -> None:
    print(f"hocket: {what}", file=sys.stderr, flush=True)


def _end(rank: int, code: int) -> str:
    """What to say of an end about which the worker itself could say nothing."""
    if code == _NEVER_TOLD:
        return (
            f"process {rank} ended with code {code}; where that is not its own, the process "
            "that had forked it was killed"
        )
    text = f"process {rank} was ended by {signal.Signals(-code).name}"
    if code != -signal.SIGKILL:
        return text
    return (
        f"{text}, perhaps by the kernel as memory ran out: see `dmesg` and memory.events of "
        "the cgroup; smaller batches or fewer processes need less"
    )
