"""How well `hocket plan` foresees: its times and memory beside those of real processes."""

import gc
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.progress import Progress
from torch import nn

from benchmarks.harness.record import Record
from benchmarks.harness.repetition import repetition
from benchmarks.harness.rounds import NoisePolicy, Turn, turn
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers import Training
from benchmarks.peers.decoupled import Decoupled
from hocket.errors import OptionError, listed, too_small, unknown
from hocket.options import Named
from hocket.partition import Plan
from hocket.partition.cut_points import find_cut_points
from hocket.partition.cutting import measure_layers
from hocket.partition.link import ONE_MACHINE
from hocket.partition.profile import LayerCost
from hocket.planner.forecast import Forecast
from hocket.planner.predict import cut_by_time, predict
from hocket.planner.rehearsals import Candidate
from hocket.runs.build import parse_method
from hocket.runs.peak_memory import peak_mib, release_free_memory, reset_peak
from hocket.transport.codecs import Exact
from hocket.tree import Tree

ROWS = ("bp", "fdg", "ddg", "dgl")
IMAGES = (3, 32, 32)


def _work(network: str, batch: int, shape: tuple[int, ...] = IMAGES, **more: Any) -> Workload:
    return Workload(
        network=network,
        shape=shape,
        batch=batch,
        stages=2,
        threads=1,
        channels_last=True,
        **more,
    )


# One core does two to ten of these batches in a second.
NETWORKS: Mapping[str, Workload] = MappingProxyType(
    {
        "resnet20": _work("resnet20", 64),
        "resnet56": _work("resnet56", 32),
        "wrn28_10": _work("wrn28_10", 2),
        "convnext": _work("hf_convnext", 32),
        "gpt2": _work("hf_gpt2", 32, (64,), vocab=65),
        "mlp": _work("mlp:hidden=[2048,2048,2048]", 128, (784,)),
    }
)


def plan(
    *,
    out: Path = Path("records/plan"),
    networks: Sequence[str] = tuple(NETWORKS),
    rows: Sequence[str] = ROWS,
    stages: int = 2,
    repetitions: int = 3,
    steps: int = 4,
    threads: int = 1,
    foreign: float = 0.1,
    retries: int = 1,
    patience_s: float = 5,
) -> None:
    """Foresee and measure every method on every network, in turns, and write the record.

    What is foreseen is what `hocket plan --same-machine` says: the stages share this machine.

    Args:
        out: Folder of the record.
        networks: Which, by the names of this measurement.
        rows: Methods, each as ``name`` or ``name:option=value,option=value``.
        stages: K, a process for each, cut by measured times.
        repetitions: Rounds, in which each network is foreseen once, and each row has a turn
            before that and one after it.
        steps: Timed steps in a turn.
        threads: Of PyTorch in each process.
        foreign: The share of the machine that other programs may use in a turn that counts.
        retries: How often a turn that was disturbed is tried again.
        patience_s: How long to wait at most, before each retry, for other programs to end.

    Raises:
        OptionError: A row, a network or a number is out of range.
        HocketError: A process failed.
    """
    chosen = dict(locals())
    numbers = {"repetitions": repetitions, "steps": steps, "threads": threads}
    _check(networks, rows, stages, numbers)
    batches = {name: NETWORKS[name].batch for name in networks}
    record = Record.of(plan, chosen, threads, batches=batches)
    quiet = NoisePolicy(foreign, retries, patience_s)
    found: list[dict[str, Any]] = []
    console = Console(stderr=True)
    with torch_threads(threads), Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=len(networks) * repetitions)
        for name in networks:
            work = replace(NETWORKS[name], stages=stages, threads=threads)
            bar.update(task, description=name)
            mine = _network(
                name, work, rows, repetitions, steps, quiet, partial(bar.advance, task)
            )
            for row in mine:
                print(_line(row), file=sys.stderr, flush=True)
            found += mine
    record.with_rows(found).write(out)


def _network(
    name: str,
    work: Workload,
    rows: Sequence[str],
    repetitions: int,
    steps: int,
    quiet: NoisePolicy,
    done: Any,
) -> list[dict[str, Any]]:
    """All methods on one network."""
    build = partial(_built, work)
    (cases,) = cut_by_time(build, [work.stages], rows)
    imbalance = _imbalance(work, cases[0].cuts)
    seen: list[list[Forecast]] = []
    turns: list[list[list[Turn]]] = []
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(RowProcesses(c.method, _peer(c, work), work)) for c in cases
        ]

        def each() -> list[Turn]:
            return [turn(partial(repetition, world, steps), quiet) for world in worlds]

        for _ in range(repetitions):
            # Before and after, as the machine's speed drifts while much is rehearsed.
            before = each()
            seen.append(predict(build, cases, contended=True, returns=False))
            turns.append([list(both) for both in zip(before, each(), strict=True)])
            done()
    added = [_added_mib(work, case) for case in cases]
    return [
        {"network": name, "imbalance": imbalance}
        | _row(
            case,
            work,
            [forecasts[place] for forecasts in seen],
            [taken[place] for taken in turns],
            steps,
            quiet,
        )
        | {"measured_mib": added[place]}
        for place, case in enumerate(cases)
    ]


def _row(
    case: Candidate,
    work: Workload,
    seen: Sequence[Forecast],
    turns: Sequence[Sequence[Turn]],
    steps: int,
    quiet: NoisePolicy,
) -> dict[str, Any]:
    """One method: what was foreseen and what came, of all rounds."""
    predicted = [1000 * one.tick_s / work.batch for one in seen]
    measured_ms = [
        1000 * mean(one.taken.wall_s for one in both) / steps / work.batch for both in turns
    ]
    ratios = [p / m for p, m in zip(predicted, measured_ms, strict=True)]
    return {
        "row": Named.parse(case.method).label,
        "cuts": list(case.cuts),
        "predicted_ms": median(predicted),
        "measured_ms": median(measured_ms),
        "ratio": median(ratios),
        "ratios": ratios,
        # What the machine alone changes: how long the second turn was, the first being 1.
        "drifts": [after.taken.wall_s / before.taken.wall_s for before, after in turns],
        # Beyond weights; half of what is held of these are their gradients.
        "predicted_mib": [held.total - held.weights / 2 for held in seen[-1].memory],
        "disturbed": sum(
            (one.taken.foreign or 0.0) > quiet.foreign for both in turns for one in both
        ),
    }


@dataclass(frozen=True)
class TrimmedBaseline:
    """A method whose processes keep nothing that was freed, and have not begun to train.

    Attributes:
        peer: The method.
    """

    peer: Decoupled

    @property
    def processes(self) -> int:
        """One for each stage."""
        return self.peer.processes

    @property
    def threads(self) -> int:
        """Of PyTorch, in each process."""
        return self.peer.threads

    def about(self) -> dict[str, Any]:
        """What the method tells."""
        return self.peer.about()

    def prepare(self, work: Workload, rank: int) -> Training:
        """This process's stage, before its first batch."""
        release_free_memory()
        work.plain()()  # kernels keep what they took for themselves, which is not foreseen
        trainer = work.trainer(self.peer.method, self.peer.plan)
        weights = dict(trainer.stages[0].module.named_parameters())
        return Training(work.decoupled(trainer), work.batch, weights)


@dataclass(frozen=True)
class PeakMemoryQuery:
    """The question for the most memory that so many steps add to what was there before."""

    steps: int

    def __call__(self, training: Training) -> float:
        """Called in the process."""
        gc.collect()
        release_free_memory()
        before_mib = reset_peak()
        for _ in range(self.steps):
            training.step()
        return peak_mib() - before_mib


def _added_mib(work: Workload, case: Candidate) -> list[float]:
    """What training adds to each process at its fullest."""
    peer = _peer(case, work)
    with RowProcesses(case.method, TrimmedBaseline(peer), work) as world:
        found: list[float] = world.ask(PeakMemoryQuery(work.until_full(peer.method) + 2))
        return found


def _peer(case: Candidate, work: Workload) -> Decoupled:
    return Decoupled(parse_method(case.method), Exact(), work.threads, Plan(case.cuts))


def _built(work: Workload) -> tuple[nn.Module, Tree, Tree]:
    inputs, targets = work.batch_of_noise()
    return work.in_format(), inputs, targets


def _imbalance(work: Workload, cuts: Sequence[str]) -> float:
    """By how much the longest stage of a cut is longer than that of the best of all cuts.

    By times of another day than those that it was cut by: all layers are timed once more.
    """
    network, inputs, _ = _built(work)
    costs = measure_layers(find_cut_points(network, inputs))
    names = list(costs)
    layers = list(costs.values())
    chosen = tuple(names.index(cut) for cut in cuts)
    every = combinations(range(1, len(layers)), len(cuts))
    return _longest_s(layers, chosen) / min(_longest_s(layers, firsts) for firsts in every) - 1


def _longest_s(layers: Sequence[LayerCost], firsts: Sequence[int]) -> float:
    """Seconds of the longest stage, with the packets that cross its borders."""
    lengths = []
    for begin, end in pairwise([0, *firsts, len(layers)]):
        crossing = [layers[border - 1] for border in (begin, end) if 0 < border < len(layers)]
        own_s = sum(layer.total_s for layer in layers[begin:end])
        lengths.append(
            own_s + sum(2 * ONE_MACHINE.seconds(layer.output_bytes) for layer in crossing)
        )
    return max(lengths)


def _check(
    networks: Sequence[str], rows: Sequence[str], stages: int, numbers: Mapping[str, int]
) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = too_small(numbers)
    if stages < 2:
        problems.append(f"stages is {stages}; give 2 or more")
    if not networks or not rows:
        problems.append("there are no networks or no rows; give at least one of each")
    problems += [unknown("network", n, list(NETWORKS)) for n in networks if n not in NETWORKS]
    for row in rows:
        method = parse_method(row)
        if method.replay is not None:
            problems.append(f"the stages of {row!r} run freely, and take no steps together")
        if numbers["steps"] % method.accumulate:
            problems.append(
                f"row {row!r} accumulates {method.accumulate} gradients; give a number of "
                f"steps that is a multiple of it instead of {numbers['steps']}"
            )
    if problems:
        raise OptionError(listed("cannot measure what is foreseen", problems))


def _line(found: Mapping[str, Any]) -> str:
    """A row in a few words."""
    pairs = zip(found["predicted_mib"], found["measured_mib"], strict=True)
    memory = ", ".join(f"{p:.0f} for {m:.0f}" for p, m in pairs)
    return (
        f"{found['network']}, {found['row']}: {found['predicted_ms']:.2f} ms foreseen for "
        f"{found['measured_ms']:.2f}, ratio {found['ratio']:.3f}; MiB {memory}; "
        f"{found['imbalance']:.1%} over the best cut"
    )
