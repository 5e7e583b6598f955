"""Timing of several steps of all processes of a row together."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import distributed

from benchmarks.harness.load import MachineLoad
from benchmarks.harness.workers import RowProcesses
from benchmarks.peers import PreparedTraining
from hocket.timeline import Fractions


@dataclass(frozen=True)
class ProcessTiming:
    """Times of one process in a repetition.

    Attributes:
        start_s: Start of its timed steps, on a clock that all processes share.
        end_s: Their end.
        cpu_s: Processor time of the timed steps, in all its threads.
        other_cpu_s: The part of it in threads other than the one that trains.
        whole_cpu_s: Processor time of all threads, with the step before the timed ones.
        spent: Busy, sending and waiting fractions of the timed steps, if they are recorded.
    """

    start_s: float
    end_s: float
    cpu_s: float
    other_cpu_s: float
    whole_cpu_s: float
    spent: Fractions | None


@dataclass(frozen=True)
class TimedSteps:
    """Query: take one step, wait for the other processes, then time several steps.

    Attributes:
        number: Number of timed steps.
    """

    number: int

    def __call__(self, training: PreparedTraining) -> ProcessTiming:
        """Answer in the process."""
        before_s = time.process_time()
        training.step()
        distributed.barrier()
        recorder = training.recorder
        earlier = recorder.totals if recorder is not None else None
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        start_own_s = time.thread_time()
        for _ in range(self.number):
            training.step()
        end_s, end_cpu_s = time.perf_counter(), time.process_time()
        cpu_s, own_s = end_cpu_s - start_cpu_s, time.thread_time() - start_own_s
        spent = None
        if recorder is not None and earlier is not None:
            spent = recorder.totals.since(earlier).as_fractions(end_s - start_s)
        return ProcessTiming(start_s, end_s, cpu_s, cpu_s - own_s, end_cpu_s - before_s, spent)


@dataclass(frozen=True)
class Repetition:
    """Times of one repetition.

    Attributes:
        wall_s: Seconds from the first start to the last end of a process.
        cpu_s: Processor time of all processes.
        foreign: Share of the machine that other programs used; None if it is not known.
        spent: Busy, sending and waiting fractions of each process; empty if not recorded.
        other_cpu_s: Processor time of threads that do not train; None if not measured.
    """

    wall_s: float
    cpu_s: float
    foreign: float | None
    spent: tuple[Fractions, ...] = ()
    other_cpu_s: float | None = None


def run_repetition(world: RowProcesses, steps: int) -> Repetition:
    """Time several steps of a row, after one that is not timed.

    Args:
        world: The processes of the row.
        steps: Number of timed steps.

    Raises:
        HocketError: A process failed.
    """
    load = MachineLoad()
    timings: Sequence[ProcessTiming] = world.query(TimedSteps(steps))
    foreign = load.foreign(sum(timing.whole_cpu_s for timing in timings))
    return Repetition(
        wall_s=max(timing.end_s for timing in timings)
        - min(timing.start_s for timing in timings),
        cpu_s=sum(timing.cpu_s for timing in timings),
        foreign=foreign,
        spent=tuple(timing.spent for timing in timings if timing.spent is not None),
        other_cpu_s=sum(timing.other_cpu_s for timing in timings),
    )
