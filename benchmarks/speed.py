"""How quick a row is beside plain back-propagation on one core of the same machine."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.balance import Balance
from benchmarks.harness.record import Record
from benchmarks.harness.repetition import repetition
from benchmarks.harness.rounds import NoisePolicy, rounds, summary
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers import Training
from benchmarks.peers.rows import checked, peer_of
from hocket.errors import HocketError, OptionError, listed, too_small

BASE = "bp"
LIMIT = "independent"
SCHEDULED = (
    "gpipe:microbatches=2",
    "gpipe:microbatches=4",
    "gpipe:microbatches=8",
    "1f1b:microbatches=2",
    "1f1b:microbatches=4",
    "1f1b:microbatches=8",
    "interleaved-1f1b:microbatches=2",
    "interleaved-1f1b:microbatches=4",
    "interleaved-1f1b:microbatches=8",
    "interleaved-zb:microbatches=2",
    "interleaved-zb:microbatches=4",
    "interleaved-zb:microbatches=8",
    "zbv:microbatches=2",
    "zbv:microbatches=4",
    "zbv:microbatches=8",
)
DECOUPLED = (
    "fdg",
    "fdg:order=forward-first",
    "fdg:extra_delay=1",
    "adl:accumulate=4",
    "dgl",
    "ddg",
    "fr",
)
ROWS = (BASE, "bp-all", "independent", "ddp", *DECOUPLED, *SCHEDULED)
MEMORY = Path("/proc/meminfo")
# Below this share of the memory the system begins to throw away what it has cached.
LEAST_MEMORY = 0.1


def speed(
    *,
    out: Path = Path("records/speed"),
    rows: Sequence[str] = ROWS,
    repetitions: int = 5,
    steps: int = 4,
    batch: int = 128,
    network: str = "resnet20",
    shape: tuple[int, ...] = (3, 32, 32),
    stages: int = 2,
    threads: int = 1,
    channels_last: bool = True,
    at_once: int = 6,
    foreign: float = 0.04,
    retries: int = 3,
    patience_s: float = 20,
) -> None:
    """Time every row in processes of its own, in turns, and write the record.

    Args:
        out: Folder of the record.
        rows: What to time, each as ``name`` or ``name:option=value,option=value``; plain
            back-propagation is always timed with them.
        repetitions: Rounds in which every row has one turn; ratios are taken in each round.
        steps: Timed steps in a turn.
        batch: Samples in a step.
        network: Name in the zoo.
        shape: One input, without the batch.
        stages: How many processes share the work where several do.
        threads: Of PyTorch in each process.
        channels_last: Memory format.
        at_once: Rows whose processes are kept in memory beside the base; then come the next.
        foreign: The share of the machine that other programs may use in a turn that counts.
        retries: How often a turn that was disturbed is tried again.
        patience_s: How long to wait at most, before each retry, for other programs to end.

    Raises:
        OptionError: A row or a number is out of range.
        HocketError: A process failed, or memory is short.
    """
    chosen = dict(locals())
    numbers = {"repetitions": repetitions, "steps": steps, "batch": batch, "stages": stages}
    quiet = NoisePolicy(foreign, retries, patience_s)
    _check(rows, numbers | {"threads": threads, "at_once": at_once}, quiet)
    work = Workload(
        network=network,
        shape=shape,
        batch=batch,
        stages=stages,
        threads=threads,
        channels_last=channels_last,
    )
    record = Record.of(speed, chosen, threads, rate=work.rate, momentum=0.9)
    others = [row for row in dict.fromkeys(rows) if row != BASE]
    groups = [others[n : n + at_once] for n in range(0, len(others), at_once)] or [[]]
    balance = Balance(work)
    measured: list[dict[str, Any]] = []
    for group in groups:
        found = _together([BASE, *group], work, balance, repetitions, steps, quiet)
        # The base is timed with every group; its own line is that of the first.
        measured += found[1:] if measured else found
    record.with_rows(measured).write(out)


def _together(
    rows: Sequence[str],
    work: Workload,
    balance: Balance,
    repetitions: int,
    steps: int,
    quiet: NoisePolicy,
) -> list[dict[str, Any]]:
    """These rows, the first of which is the base, with all their processes alive."""
    with ExitStack() as stack:
        worlds = []
        for row in rows:
            peer = peer_of(row, work, balance)
            world = stack.enter_context(RowProcesses(row, peer, work))
            repetition(world, steps=1)  # takes the memory that it will need
            _require_memory(row)
            worlds.append(world)
        repeats = [partial(repetition, world, steps) for world in worlds]
        turns = rounds(repeats, repetitions, quiet)
        samples = [steps * world.ask(attrgetter("samples"))[0] for world in worlds]
        measured: list[dict[str, Any]] = []
        for row, world, mine, finished in zip(rows, worlds, turns, samples, strict=True):
            found: dict[str, Any] = {
                "row": checked(row).label,
                "processes": world.peer.processes,
                "threads": world.peer.threads,
                "choices": world.peer.about(),
                "parameters": world.ask(_parameters),
                "peak_mib": world.peak_mib(),
            }
            found |= summary(
                mine, turns[0], samples=finished, base_samples=samples[0], quiet=quiet
            )
            print(_line(found), file=sys.stderr, flush=True)
            measured.append(found)
    limits = [found["ratios"] for found in measured if found["row"] == LIMIT]
    for found, limit in product(measured, limits):
        pairs = zip(found["ratios"], limit, strict=True)
        found["of_limit"] = median(mine / most for mine, most in pairs)
    return measured


def _parameters(training: Training) -> int:
    """How many numbers a process trains."""
    return sum(weight.numel() for weight in training.weights.values())


def _check(rows: Sequence[str], numbers: dict[str, int], quiet: NoisePolicy) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = too_small(numbers)
    if not 0 <= quiet.foreign <= 1:
        problems.append(f"foreign is {quiet.foreign}; give a share from 0 to 1")
    if quiet.retries < 0:
        problems.append(f"retries is {quiet.retries}; give 0 or more")
    if not rows:
        problems.append("there are no rows; give at least one")
    for row in rows:
        checked(row)
    if problems:
        raise OptionError(listed("cannot measure speed", problems))


def _require_memory(row: str) -> None:
    """Refuse to go on where the system would soon throw processes out.

    Raises:
        HocketError: Little memory is left.
    """
    if not MEMORY.is_file():
        return
    lines = (line.split() for line in MEMORY.read_text(encoding="ascii").splitlines())
    kib = {words[0]: int(words[1]) for words in lines}
    if kib["MemAvailable:"] < LEAST_MEMORY * kib["MemTotal:"]:
        raise HocketError(
            f"with the processes of the row {row!r} only {kib['MemAvailable:'] // 1024} MiB of "
            f"{kib['MemTotal:'] // 1024} MiB are left; measure fewer rows at once (--at-once), "
            "or a smaller batch"
        )


def _line(found: dict[str, Any]) -> str:
    """A measured row in a few words."""
    low, high = found["ratio_min"], found["ratio_max"]
    return (
        f"{found['row']}: {found['samples_per_s']:.1f}/s, {found['ratio']:.3f} "
        f"({low:.3f} to {high:.3f}), {max(found['peak_mib']):.0f} MiB"
    )
