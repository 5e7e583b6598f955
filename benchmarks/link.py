"""What two nodes gain where the link between them is slow, by method and bandwidth."""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from torch import distributed

from benchmarks.harness.balance import Balance
from benchmarks.harness.load import Load
from benchmarks.harness.nodes import INTERFACE, VirtualLink, two_nodes
from benchmarks.harness.record import Record
from benchmarks.harness.repetition import Repetition
from benchmarks.harness.rounds import NoisePolicy, Turn, rounds
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers import Training
from benchmarks.peers.rows import checked, peer_of
from hocket.errors import OptionError, listed, too_small

ROWS = ("bp", "ddp", "1f1b:microbatches=4", "1f1b:microbatches=8", "fdg", "fdg:extra_delay=1")
NODES = 2
MIB = 2**20
COUNTS = Path("/proc/self/net/dev")


def link(
    *,
    out: Path = Path("records/link"),
    rows: Sequence[str] = ROWS,
    mbit_s: Sequence[float] = (1000, 300, 100),
    repetitions: int = 5,
    seconds: float = 3,
    batch: int = 128,
    network: str = "mlp:hidden=[2048,2048,2048,2048]",
    shape: tuple[int, ...] = (3, 32, 32),
    threads: int = 1,
    channels_last: bool = True,
    foreign: float = 0.1,
    retries: int = 1,
    patience_s: float = 5,
) -> None:
    """Time every row on two nodes of this machine, over links of these rates; needs root.

    Args:
        out: Folder of the record.
        rows: What to time, each as ``name`` or ``name:option=value``; methods of Hocket take
            their own options, ``extra_delay`` and ``codec``. What takes one process only works on
            one node.
        mbit_s: What the link lets through each way, in Mbit/s.
        repetitions: Rounds in which every row has one turn, at every rate.
        seconds: How long a turn lasts, or two steps if they take longer.
        batch: Samples in a step.
        network: Name in the zoo, with options if need be. The default has many weights for
            its activations, which is where sending activations pays.
        shape: One input, without the batch.
        threads: Of PyTorch in each process.
        channels_last: Memory format.
        foreign: The share of the machine that other programs may use in a turn that counts.
        retries: How often a turn that was disturbed is tried again.
        patience_s: How long to wait at most, before each retry, for other programs to end.

    Raises:
        OptionError: A row or a number is out of range.
        NodesError: This machine cannot be made to look like two.
        HocketError: A process failed.
    """
    chosen = dict(locals())
    numbers = {"repetitions": repetitions, "batch": batch, "threads": threads}
    _check(rows, mbit_s, numbers, seconds)
    work = Workload(
        network=network,
        shape=shape,
        batch=batch,
        stages=NODES,
        threads=threads,
        channels_last=channels_last,
    )
    record = Record.of(link, chosen, threads, parameters=work.parameters())
    quiet = NoisePolicy(foreign, retries, patience_s)
    with two_nodes() as joint, ExitStack() as stack:
        balance = Balance(work)
        worlds = {}
        for row in dict.fromkeys(rows):
            peer = peer_of(row, work, balance)
            nodes = joint.nodes[: peer.processes]
            worlds[row] = stack.enter_context(RowProcesses(row, peer, work, nodes=nodes))
        measured = []
        for rate in mbit_s:
            measured += _at_rate(joint, rate, worlds, repetitions, seconds, quiet)
    record.with_rows(measured).write(out)


@dataclass(frozen=True)
class Stretch:
    """What one process saw of some steps.

    Attributes:
        wall_s: How long they took it.
        cpu_s: Processor time of them, in all its threads.
        whole_cpu_s: The same with the steps before them.
        sent_bytes: What its node sent meanwhile, of whatever row.
    """

    wall_s: float
    cpu_s: float
    whole_cpu_s: float
    sent_bytes: int


@dataclass(frozen=True)
class Flow:
    """The question to a process: take some steps, then so many, timed, without a halt.

    A pipeline that had halted would begin with all that it waits for already there.

    Attributes:
        before: Steps that do not count.
        number: Those that do.
    """

    before: int
    number: int

    def __call__(self, training: Training) -> Stretch:
        """Called in the process."""
        distributed.barrier()
        begin_cpu_s = time.process_time()
        for _ in range(self.before):
            training.step()
        sent = sent_bytes()
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        for _ in range(self.number):
            training.step()
        end_s, end_cpu_s = time.perf_counter(), time.process_time()
        return Stretch(
            wall_s=end_s - start_s,
            cpu_s=end_cpu_s - start_cpu_s,
            whole_cpu_s=end_cpu_s - begin_cpu_s,
            sent_bytes=sent_bytes() - sent,
        )


def sent_bytes() -> int:
    """What this node has sent over the link so far, with all headers."""
    for line in COUNTS.read_text(encoding="ascii").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counts.split()[8])
    return 0


def steps_for(seconds: float, step_s: float) -> int:
    """How many steps fill so many seconds; at least two.

    >>> [steps_for(3, step_s) for step_s in (0.1, 1.4, 7)]
    [30, 2, 2]
    """
    return max(2, round(seconds / step_s))


def _at_rate(
    joint: VirtualLink,
    rate: float,
    worlds: dict[str, RowProcesses],
    repetitions: int,
    seconds: float,
    quiet: NoisePolicy,
) -> list[dict[str, Any]]:
    """All rows over a link of this rate."""
    joint.limit(rate)
    trials = {row: world.ask(Flow(1, 2)) for row, world in worlds.items()}
    steps = {
        row: steps_for(seconds, max(one.wall_s for one in trial) / 2)
        for row, trial in trials.items()
    }
    repeats = [partial(_repetition, worlds[row], steps[row]) for row in worlds]
    turns = rounds(repeats, repetitions, quiet)
    measured = []
    for (row, world), mine in zip(worlds.items(), turns, strict=True):
        found = {
            "row": checked(row).label,
            "mbit_s": rate,
            "processes": world.peer.processes,
            "threads": world.peer.threads,
            "choices": world.peer.about(),
            "steps": steps[row],
            "sent_mib": [one.sent_bytes / MIB / 2 for one in trials[row]],
        }
        found |= _summary(mine, steps[row] * world.ask(_samples)[0], quiet)
        print(_line(found), file=sys.stderr, flush=True)
        measured.append(found)
    return measured


def _repetition(world: RowProcesses, steps: int) -> Repetition:
    """So many steps of a row, after a quarter as many that do not count."""
    load = Load()
    stretches: list[Stretch] = world.ask(Flow(-(-steps // 4), steps))
    return Repetition(
        wall_s=max(one.wall_s for one in stretches),
        cpu_s=sum(one.cpu_s for one in stretches),
        foreign=load.foreign(sum(one.whole_cpu_s for one in stretches)),
    )


def _samples(training: Training) -> int:
    """The question for what a step finishes."""
    return training.samples


def _summary(turns: Sequence[Turn], samples: int, quiet: NoisePolicy) -> dict[str, Any]:
    """Median and range over rounds."""
    times_ms = [1000 * turn.taken.wall_s / samples for turn in turns]
    return {
        "ms_per_sample": median(times_ms),
        "ms_min": min(times_ms),
        "ms_max": max(times_ms),
        "foreign": [turn.taken.foreign for turn in turns],
        "disturbed": sum((turn.taken.foreign or 0.0) > quiet.foreign for turn in turns),
        "dropped": sum(turn.dropped for turn in turns),
    }


def _check(
    rows: Sequence[str], mbit_s: Sequence[float], numbers: dict[str, int], seconds: float
) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = too_small(numbers)
    problems += [f"mbit_s is {rate}; give a number above 0" for rate in mbit_s if rate <= 0]
    if not seconds > 0:
        problems.append(f"seconds is {seconds}; give a number above 0")
    if not rows or not mbit_s:
        problems.append("there are no rows or no rates; give at least one of each")
    for row in rows:
        checked(row)
    if problems:
        raise OptionError(listed("cannot measure over a link", problems))


def _line(found: dict[str, Any]) -> str:
    """A measured row in a few words."""
    return (
        f"{found['mbit_s']:g} Mbit/s, {found['row']}: {found['ms_per_sample']:.2f} ms/sample "
        f"({found['ms_min']:.2f} to {found['ms_max']:.2f}), {found['steps']} steps, sends "
        f"{max(found['sent_mib']):.1f} MiB a step"
    )
