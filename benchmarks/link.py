"""Speed of methods and baselines on two nodes over links of several rates."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from cyclopts import Parameter
from torch import distributed

from benchmarks.harness.balance import Balancer
from benchmarks.harness.load import MachineLoad
from benchmarks.harness.nodes import INTERFACE, VirtualLink, two_nodes
from benchmarks.harness.record import Record
from benchmarks.harness.repetition import Repetition
from benchmarks.harness.rounds import NoisePolicy, Turn, run_rounds
from benchmarks.harness.settings import check_settings, select_fields
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers import PreparedTraining
from benchmarks.peers.rows import build_baseline, parse_row

ROWS = ("bp", "ddp", "1f1b:microbatches=4", "1f1b:microbatches=8", "fdg", "fdg:extra_delay=1")
NODES = 2
MIB = 2**20
COUNTS = Path("/proc/self/net/dev")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """Settings of the measurement over links.

    Attributes:
        out: Folder of the record.
        rows: Rows to time, each as ``name`` or ``name:option=value``; methods of Hocket take
            their own options, ``extra_delay`` and ``codec``. Rows with one process run on one
            node.
        mbit_s: Rates of the link in each direction, in Mbit/s.
        repetitions: Rounds in which every row has one turn, at every rate.
        seconds: Length of a turn, which has two steps at least.
        batch: Samples in a step.
        network: Name in the zoo, with options. The default has many weights compared with its
            activations: sending activations instead of gradients pays there.
        shape: Shape of one input, without the batch dimension.
        threads: PyTorch threads in each process.
        channels_last: Use the channels-last memory format.
        foreign: Share of the machine that other programs may use in a turn that counts.
        retries: Number of retries of a disturbed turn.
        patience_s: Longest time to wait before each retry for other programs to end.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/link")
    rows: Sequence[str] = ROWS
    mbit_s: Sequence[float] = (1000, 300, 100)
    repetitions: int = 5
    seconds: float = 3
    batch: int = 128
    network: str = "mlp:hidden=[2048,2048,2048,2048]"
    shape: tuple[int, ...] = (3, 32, 32)
    threads: int = 1
    channels_last: bool = True
    foreign: float = 0.1
    retries: int = 1
    patience_s: float = 5

    def __post_init__(self) -> None:
        for row in self.rows:
            parse_row(row)
        check_settings(
            "cannot measure over a link",
            self,
            at_least={1: ("repetitions", "batch", "threads")},
            not_empty=("rows", "mbit_s"),
            problems=[
                f"{name} is {number}; give a number above 0"
                for name, numbers in (("mbit_s", self.mbit_s), ("seconds", [self.seconds]))
                for number in numbers
                if not number > 0
            ],
        )


DEFAULTS = LinkSettings()


def measure_link(settings: LinkSettings = DEFAULTS) -> None:
    """Time every row on two nodes of this machine, over links of these rates; needs root.

    Raises:
        NodesError: This machine cannot provide two network namespaces.
        HocketError: A process failed.
    """
    work = Workload(**select_fields(settings, Workload) | {"stages": NODES})
    record = Record.from_settings("link", settings, parameters=work.parameter_count())
    with two_nodes() as virtual_link, ExitStack() as stack:
        balance = Balancer(work)
        worlds = {}
        for row in dict.fromkeys(settings.rows):
            baseline = build_baseline(row, work, balance)
            nodes = virtual_link.nodes[: baseline.processes]
            worlds[row] = stack.enter_context(RowProcesses(row, baseline, work, nodes=nodes))
        measured = []
        for rate in settings.mbit_s:
            measured += _time_at_rate(virtual_link, rate, worlds, settings)
    record.with_rows(measured).write(settings.out)


@dataclass(frozen=True)
class LinkTiming:
    """Times of one process, and bytes sent.

    Attributes:
        wall_s: Seconds of the timed steps.
        cpu_s: Processor time of them, in all threads.
        whole_cpu_s: Processor time with the steps before them.
        sent_bytes: Bytes that its node sent meanwhile, for all rows.
    """

    wall_s: float
    cpu_s: float
    whole_cpu_s: float
    sent_bytes: int


@dataclass(frozen=True)
class TimedFlow:
    """Query: take some steps, then time further ones without a pause.

    After a pause, all packets that a pipeline waits for would have arrived already.

    Attributes:
        before: Number of steps that are not timed.
        number: Number of timed steps.
    """

    before: int
    number: int

    def __call__(self, training: PreparedTraining) -> LinkTiming:
        """Answer in the process."""
        distributed.barrier()
        begin_cpu_s = time.process_time()
        for _ in range(self.before):
            training.step()
        sent = read_sent_bytes()
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        for _ in range(self.number):
            training.step()
        end_s, end_cpu_s = time.perf_counter(), time.process_time()
        return LinkTiming(
            wall_s=end_s - start_s,
            cpu_s=end_cpu_s - start_cpu_s,
            whole_cpu_s=end_cpu_s - begin_cpu_s,
            sent_bytes=read_sent_bytes() - sent,
        )


def read_sent_bytes() -> int:
    """Return the bytes that this node has sent over the link, with all headers."""
    for line in COUNTS.read_text(encoding="ascii").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counts.split()[8])
    return 0


def steps_in(seconds: float, step_s: float) -> int:
    """Return the number of steps in this time; two at least.

    >>> [steps_in(3, step_s) for step_s in (0.1, 1.4, 7)]
    [30, 2, 2]
    """
    return max(2, round(seconds / step_s))


def _time_at_rate(
    virtual_link: VirtualLink,
    rate: float,
    worlds: Mapping[str, RowProcesses],
    settings: LinkSettings,
) -> list[dict[str, Any]]:
    """Return all rows over a link of this rate."""
    virtual_link.limit(rate)
    quiet = NoisePolicy(**select_fields(settings, NoisePolicy))
    trials = {name: world.query(TimedFlow(1, 2)) for name, world in worlds.items()}
    steps = {
        name: steps_in(settings.seconds, max(timing.wall_s for timing in trial) / 2)
        for name, trial in trials.items()
    }
    repeats = [partial(_run_repetition, worlds[name], steps[name]) for name in worlds]
    turns = run_rounds(repeats, settings.repetitions, quiet)
    measured = []
    for (name, world), taken in zip(worlds.items(), turns, strict=True):
        samples = steps[name] * world.query(attrgetter("samples"))[0]
        row = {
            "row": parse_row(name).label,
            "mbit_s": rate,
            "processes": world.baseline.processes,
            "threads": world.baseline.threads,
            "choices": world.baseline.describe(),
            "steps": steps[name],
            "sent_mib": [timing.sent_bytes / MIB / 2 for timing in trials[name]],
        } | _summarize_turns(taken, samples, quiet)
        print(_summarize_row(row), file=sys.stderr, flush=True)
        measured.append(row)
    return measured


def _run_repetition(world: RowProcesses, steps: int) -> Repetition:
    """Time several steps of a row, after a quarter of their number that is not timed."""
    load = MachineLoad()
    timings: list[LinkTiming] = world.query(TimedFlow(-(-steps // 4), steps))
    return Repetition(
        wall_s=max(timing.wall_s for timing in timings),
        cpu_s=sum(timing.cpu_s for timing in timings),
        foreign=load.foreign(sum(timing.whole_cpu_s for timing in timings)),
    )


def _summarize_turns(turns: Sequence[Turn], samples: int, quiet: NoisePolicy) -> dict[str, Any]:
    """Return median and range over rounds."""
    times_ms = [1000 * turn.counted.wall_s / samples for turn in turns]
    return {
        "ms_per_sample": median(times_ms),
        "ms_min": min(times_ms),
        "ms_max": max(times_ms),
        "foreign": [turn.counted.foreign for turn in turns],
        "disturbed": sum((turn.counted.foreign or 0.0) > quiet.foreign for turn in turns),
        "dropped": sum(turn.dropped for turn in turns),
    }


def _summarize_row(row: Mapping[str, Any]) -> str:
    return (
        f"{row['mbit_s']:g} Mbit/s, {row['row']}: {row['ms_per_sample']:.2f} ms/sample "
        f"({row['ms_min']:.2f} to {row['ms_max']:.2f}), {row['steps']} steps, sends "
        f"{max(row['sent_mib']):.1f} MiB a step"
    )
