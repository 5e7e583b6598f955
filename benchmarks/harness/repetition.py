"""Timing of several steps of all processes of a row together."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import distributed

from benchmarks.harness.load import MachineLoad, wait_until_quiet
from benchmarks.harness.nodes import read_sent_bytes
from benchmarks.harness.workers import RowProcesses
from benchmarks.peers.baseline import PreparedTraining
from hocket.timeline import Fractions


@dataclass(frozen=True)
class ProcessTiming:
    """Times of one process in a repetition.

    Attributes:
        wall_s: Seconds of the timed steps.
        cpu_s: Processor time of the timed steps, in all its threads.
        other_cpu_s: The part of it in threads other than the one that trains.
        whole_cpu_s: Processor time of all threads, with the steps before the timed ones.
        sent_bytes: Bytes that its node sent meanwhile, for all processes there.
        spent: Busy, sending and waiting fractions of the timed steps, if they are recorded.
    """

    wall_s: float
    cpu_s: float
    other_cpu_s: float
    whole_cpu_s: float
    sent_bytes: int
    spent: Fractions | None


@dataclass(frozen=True)
class TimedSteps:
    """Query: wait for the other processes, take some steps, then time further ones.

    There is no pause before the timed steps: after one, all packets that a pipeline waits for
    would have arrived already.

    Attributes:
        number: Number of timed steps.
        before: Number of steps that are not timed.
    """

    number: int
    before: int = 1

    def __call__(self, training: PreparedTraining) -> ProcessTiming:
        """Answer in the process."""
        distributed.barrier()
        before_s = time.process_time()
        for _ in range(self.before):
            training.step()
        recorder, sent = training.recorder, read_sent_bytes()
        earlier = recorder.seconds if recorder is not None else None
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        start_own_s = time.thread_time()
        for _ in range(self.number):
            training.step()
        wall_s, end_cpu_s = time.perf_counter() - start_s, time.process_time()
        cpu_s, own_s = end_cpu_s - start_cpu_s, time.thread_time() - start_own_s
        spent = None
        if recorder is not None and earlier is not None:
            since = {kind: s - earlier[kind] for kind, s in recorder.seconds.items()}
            spent = Fractions.of(since, wall_s)
        return ProcessTiming(
            wall_s=wall_s,
            cpu_s=cpu_s,
            other_cpu_s=cpu_s - own_s,
            whole_cpu_s=end_cpu_s - before_s,
            sent_bytes=read_sent_bytes() - sent,
            spent=spent,
        )


@dataclass(frozen=True)
class Repetition:
    """Times of one repetition.

    Attributes:
        steps: Number of timed steps.
        wall_s: Seconds of the process that took longest.
        cpu_s: Processor time of all processes.
        foreign: Share of the machine that other programs used; None if it is not known.
        sent_bytes: Bytes that the node of each process sent.
        spent: Busy, sending and waiting fractions of each process; empty if not recorded.
        other_cpu_s: Processor time of threads that do not train.
    """

    steps: int
    wall_s: float
    cpu_s: float
    foreign: float | None
    sent_bytes: tuple[int, ...] = ()
    spent: tuple[Fractions, ...] = ()
    other_cpu_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.wall_s / self.steps


def run_repetition(world: RowProcesses, steps: TimedSteps) -> Repetition:
    """Time several steps of a row.

    Raises:
        HocketError: A process failed.
    """
    load = MachineLoad()
    timings: Sequence[ProcessTiming] = world.query(steps)
    return Repetition(
        steps=steps.number,
        wall_s=max(timing.wall_s for timing in timings),
        cpu_s=sum(timing.cpu_s for timing in timings),
        foreign=load.foreign(sum(timing.whole_cpu_s for timing in timings)),
        sent_bytes=tuple(timing.sent_bytes for timing in timings),
        spent=tuple(timing.spent for timing in timings if timing.spent is not None),
        other_cpu_s=sum(timing.other_cpu_s for timing in timings),
    )


@dataclass(frozen=True)
class NoisePolicy:
    """Conditions under which a repetition counts.

    Attributes:
        foreign: Largest share of the machine that other programs may use meanwhile.
        retries: Number of retries of a disturbed repetition; after them the least disturbed
            one counts.
        patience_s: Longest time to wait before each retry for other programs to end.
    """

    foreign: float
    retries: int
    patience_s: float


@dataclass(frozen=True)
class Turn:
    """The repetition of a row that counts in a round, and how many disturbed ones do not."""

    counted: Repetition
    dropped: int


def take_turn(repeat: Callable[[], Repetition], policy: NoisePolicy) -> Turn:
    """Repeat until a repetition is undisturbed, or the retries are used up."""
    tried = [repeat()]
    while (tried[-1].foreign or 0.0) > policy.foreign and len(tried) <= policy.retries:
        wait_until_quiet(policy.foreign, policy.patience_s)
        tried.append(repeat())
    return Turn(min(tried, key=lambda one: one.foreign or 0.0), len(tried) - 1)


def summarize_turns(
    turns: Sequence[Turn],
    base: Sequence[Turn],
    *,
    samples: int,
    base_samples: int,
    policy: NoisePolicy,
) -> dict[str, Any]:
    """Return medians over rounds, and the range of the ratios to the base of the same round.

    The row finishes ``samples`` in a repetition, the base ``base_samples``.
    """
    pairs = [(row.counted, other.counted) for row, other in zip(turns, base, strict=True)]
    ratios = [samples / row.wall_s / (base_samples / other.wall_s) for row, other in pairs]
    cpu_ratios = [row.cpu_s / samples / (other.cpu_s / base_samples) for row, other in pairs]
    return {
        "samples_per_s": median(samples / row.wall_s for row, _ in pairs),
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratios": ratios,
        "cpu_s_per_sample": median(row.cpu_s / samples for row, _ in pairs),
        "cpu_ratio": median(cpu_ratios),
        "other_cpu": median(row.other_cpu_s / row.cpu_s for row, _ in pairs),
        "communication": median_fractions([row.spent for row, _ in pairs], "communication"),
        "waiting": median_fractions([row.spent for row, _ in pairs], "waiting"),
        "foreign": [row.foreign for row, _ in pairs],
        "disturbed": sum((row.foreign or 0.0) > policy.foreign for row, _ in pairs),
        "dropped": sum(row.dropped for row in turns),
    }


def median_fractions(rounds: Sequence[Sequence[Fractions]], name: str) -> list[float]:
    """Return the median over rounds of a fraction for each process; empty if not recorded.

    Args:
        rounds: The fractions of each process, for each round.
        name: The fraction, such as "waiting".
    """
    return [
        median(getattr(one, name) for one in process) for process in zip(*rounds, strict=True)
    ]
