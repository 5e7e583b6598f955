"""Some steps of all processes of a row, timed together."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import distributed

from benchmarks.harness.load import Load
from benchmarks.harness.workers import RowProcesses
from benchmarks.peers import Training
from hocket.timeline import Fractions


@dataclass(frozen=True)
class ProcessTiming:
    """What one process saw of a repetition.

    Attributes:
        start_s: When its timed steps began, on a clock that all processes share.
        end_s: When they ended.
        cpu_s: Processor time of the timed steps, in all its threads.
        other_cpu_s: The part of it that was not the training's own thread.
        whole_cpu_s: That of all threads with the step before them.
        spent: What the timed steps went to, as parts of their time, if that is recorded.
    """

    start_s: float
    end_s: float
    cpu_s: float
    other_cpu_s: float
    whole_cpu_s: float
    spent: Fractions | None


@dataclass(frozen=True)
class Steps:
    """The question to a process: take one step, meet the others, take so many, timed."""

    number: int

    def __call__(self, training: Training) -> ProcessTiming:
        """Called in the process."""
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
            spent = recorder.totals.since(earlier).over(end_s - start_s)
        return ProcessTiming(start_s, end_s, cpu_s, cpu_s - own_s, end_cpu_s - before_s, spent)


@dataclass(frozen=True)
class Repetition:
    """What a repetition took.

    Attributes:
        wall_s: From the start to the end of the last process.
        cpu_s: Processor time of all processes.
        foreign: Share of the machine that others used meanwhile; None where the system does
            not tell.
        spent: What the time of each process went to; empty if that is not recorded.
        other_cpu_s: Processor time of threads beside those that train; None if not asked.
    """

    wall_s: float
    cpu_s: float
    foreign: float | None
    spent: tuple[Fractions, ...] = ()
    other_cpu_s: float | None = None


def repetition(world: RowProcesses, steps: int) -> Repetition:
    """So many steps of a row, after one that does not count.

    Raises:
        HocketError: A process failed.
    """
    load = Load()
    laps: Sequence[ProcessTiming] = world.ask(Steps(steps))
    foreign = load.foreign(sum(lap.whole_cpu_s for lap in laps))
    return Repetition(
        wall_s=max(lap.end_s for lap in laps) - min(lap.start_s for lap in laps),
        cpu_s=sum(lap.cpu_s for lap in laps),
        foreign=foreign,
        spent=tuple(lap.spent for lap in laps if lap.spent is not None),
        other_cpu_s=sum(lap.other_cpu_s for lap in laps),
    )
