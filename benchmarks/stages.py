"""What more stages give: measured on the cores there are, and computed for a core each."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from torch import distributed

from benchmarks.harness.balance import Balance
from benchmarks.harness.record import Record
from benchmarks.harness.rounds import medians
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Step, Workload
from benchmarks.peers import Training
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.rows import checked, peer_of
from hocket.errors import OptionError, listed
from hocket.methods import METHODS
from hocket.planner.replay import replay
from hocket.timeline import Timeline, Totals

ROWS = ("fdg", "adl:accumulate=4", "dgl", "ddg", "fr")


def stages(
    *,
    out: Path = Path("records/stages"),
    rows: Sequence[str] = ROWS,
    counts: Sequence[int] = (2, 3, 4),
    repetitions: int = 3,
    steps: int = 8,
    batch: int = 128,
    network: str = "resnet20",
    shape: tuple[int, ...] = (3, 32, 32),
    threads: int = 1,
    channels_last: bool = True,
) -> None:
    """Time methods on several numbers of stages, and compute what a core for each would give.

    Args:
        out: Folder of the record.
        rows: Methods, each as ``name`` or ``name:option=value,option=value``.
        counts: Numbers of stages.
        repetitions: How often each is timed, in turn with plain back-propagation.
        steps: Timed steps each time, 2 or more, as a tick is the time between two.
        batch: Samples in a step.
        network: Name in the zoo.
        shape: One input, without the batch.
        threads: Of PyTorch in each process.
        channels_last: Memory format.

    Raises:
        OptionError: A row or a number is out of range.
        CutError: There are fewer layers than stages.
        HocketError: A process failed.
    """
    chosen = dict(locals())
    numbers = {"repetitions": repetitions, "steps": steps, "batch": batch, "threads": threads}
    _check(rows, counts, numbers)
    work = Workload(
        network=network,
        shape=shape,
        batch=batch,
        stages=1,
        threads=threads,
        channels_last=channels_last,
    )
    record = Record.of(stages, chosen, threads)
    times_s = Balance(work).times_s
    measured = []
    for count in counts:
        mine = replace(work, stages=count)
        for row in rows:
            peer = peer_of(row, mine, Balance(mine, times_s))
            assert isinstance(peer, Decoupled)
            found = {"row": checked(row).label, "stages": count, "choices": peer.about()}
            found |= _measured(row, peer, mine, repetitions, steps)
            found |= _computed(peer, mine, repetitions, steps)
            print(_line(found), file=sys.stderr, flush=True)
            measured.append(found)
    record.with_rows(measured).write(out)


@dataclass(frozen=True)
class Share:
    """What a process spent some ticks on.

    Attributes:
        wall_s: How long they took it.
        spent: On what.
    """

    wall_s: float
    spent: Totals


@dataclass(frozen=True)
class Ticks:
    """The question to a process: take so many steps without a halt; what did they go to?"""

    number: int

    def __call__(self, training: Training) -> Share:
        """Called in the process."""
        assert training.recorder is not None
        distributed.barrier()
        training.step()
        before, start_s = training.recorder.totals, perf_counter()
        for _ in range(self.number):
            training.step()
        end_s, after = perf_counter(), training.recorder.totals
        return Share(end_s - start_s, after.since(before))


def _measured(
    row: str, peer: Decoupled, work: Workload, repetitions: int, steps: int
) -> dict[str, Any]:
    """A process for each stage, on the cores of this machine."""
    with RowProcesses(row, peer, work) as world:
        asked: list[list[Share]] = [world.ask(Ticks(steps)) for _ in range(repetitions)]
    fractions = [[share.spent.over(share.wall_s) for share in shares] for shares in asked]
    return {
        "ticks_per_s": median(steps / max(s.wall_s for s in shares) for shares in asked),
        **{name: medians(fractions, name) for name in ("busy", "communication", "waiting")},
    }


def _computed(peer: Decoupled, work: Workload, repetitions: int, steps: int) -> dict[str, Any]:
    """All stages in this process, one after the other, replayed with a core for each."""
    with torch_threads(work.threads):
        plain = work.plain()
        trainer = work.trainer(peer.method, peer.plan, trace=True)
        step = work.decoupled(trainer)
        for _ in range(work.until_full(peer.method)):
            step()
        plain()
        ratios, waiting = [], []
        for _ in range(repetitions):
            begin = len(trainer.timeline().batches)
            plain_s = []
            for _ in range(steps):  # in turns, as the machine's speed drifts
                step()
                plain_s.append(_seconds(plain))
            timeline = replay(trainer.timeline(), peer.method, work.stages)
            # From the first batch of this repetition to the first of the next.
            own = timeline.window(begin, steps)
            ratios.append(median(plain_s) / _tick_s(timeline, steps))
            waiting.append([own.fractions()[k].waiting for k in range(work.stages)])
    return {
        "computed_speed_up": median(ratios),
        "computed_waiting": [median(mine) for mine in zip(*waiting, strict=True)],
    }


def _tick_s(timeline: Timeline, ticks: int) -> float:
    """Seconds from one forward to the next in the last so many, of the slowest stage.

    Where no gradient comes back, stages before it run ahead of it, but not for long.
    """
    forwards = [span for span in timeline.spans if span.kind == "F"]
    starts = [
        [span.start_s for span in forwards if span.stage == stage][-ticks:]
        for stage in {span.stage for span in forwards}
    ]
    return max((mine[-1] - mine[0]) / (ticks - 1) for mine in starts)


def _seconds(step: Step) -> float:
    start_s = perf_counter()
    step()
    return perf_counter() - start_s


def _check(rows: Sequence[str], counts: Sequence[int], numbers: dict[str, int]) -> None:
    """Refuses what cannot be measured, before anything is."""
    least = {name: 2 if name == "steps" else 1 for name in numbers}
    problems = [
        f"{name} is {n}; give {least[name]} or more"
        for name, n in numbers.items()
        if n < least[name]
    ]
    problems += [f"a count of stages is {n}; give 2 or more" for n in counts if n < 2]
    if not rows or not counts:
        problems.append("there are no rows or no counts; give at least one of each")
    problems += [
        f"the row {row!r} is no method with stages; choose one of {', '.join(METHODS)}"
        for row in rows
        if checked(row).name not in METHODS or checked(row).name == "bp"
    ]
    if problems:
        raise OptionError(listed("cannot measure numbers of stages", problems))


def _line(found: dict[str, Any]) -> str:
    """A measured row in a few words."""
    waiting = ", ".join(f"{share:.0%}" for share in found["waiting"])
    return (
        f"{found['stages']} stages, {found['row']}: {found['ticks_per_s']:.2f} ticks/s, "
        f"waiting {waiting}; computed {found['computed_speed_up']:.2f} times bp"
    )
