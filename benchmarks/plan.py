"""Comparison of the forecasts of `hocket plan` with times and memory of real processes."""

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress
from torch import nn

from benchmarks.harness.process_memory import release_free_memory, reset_peak
from benchmarks.harness.record import Record
from benchmarks.harness.repetition import run_repetition
from benchmarks.harness.rounds import NoisePolicy, Turn, take_turn
from benchmarks.harness.settings import check_settings, select_fields
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers import PreparedTraining
from benchmarks.peers.baseline import network_state
from benchmarks.peers.decoupled import Decoupled
from hocket.errors import unknown_name
from hocket.methods import parse_method
from hocket.options import Named
from hocket.partition import Plan
from hocket.partition.costs.link import ONE_MACHINE
from hocket.partition.costs.profile import LayerCost
from hocket.partition.cut_points import find_cut_points
from hocket.partition.cutting import measure_layers
from hocket.planner.forecast import Forecast
from hocket.planner.predict import cut_by_time, predict_all
from hocket.planner.rehearsals import Candidate
from hocket.runs.peak_memory import peak_mib
from hocket.transport.codecs import Exact

ROWS = ("bp", "fdg", "ddg", "dgl")
IMAGES = (3, 32, 32)


def _build_workload(
    network: str, batch: int, shape: tuple[int, ...] = IMAGES, vocab: int | None = None
) -> Workload:
    return Workload(
        network=network,
        shape=shape,
        batch=batch,
        stages=2,
        threads=1,
        channels_last=True,
        vocab=vocab,
    )


def convnext(*, num_classes: int) -> nn.Module:
    """Build a small ConvNeXt of transformers, from images to (B, num_classes) scores."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(patch_size=2, depths=[2, 2, 2, 2], hidden_sizes=[32, 64, 128, 256])
    config.num_labels = num_classes
    return _returning_scores(ConvNextForImageClassification(config))


def gpt2(*, vocab: int, context: int) -> nn.Module:
    """Build a small GPT-2 of transformers, from (B, T) token ids to (B, T, vocab) scores."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4,
        n_embd=128,
        n_head=4,
        vocab_size=vocab,
        n_positions=context,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return _returning_scores(GPT2LMHeadModel(config))


def _returning_scores(network: nn.Module) -> nn.Module:
    network.register_forward_hook(lambda network, inputs, output: output.logits)
    return network


# One core computes two to ten of these batches in a second.
NETWORKS: Mapping[str, Workload] = MappingProxyType(
    {
        "resnet20": _build_workload("resnet20", 64),
        "resnet56": _build_workload("resnet56", 32),
        "wrn28_10": _build_workload("wrn28_10", 2),
        "convnext": _build_workload(f"{__name__}:convnext", 32),
        "gpt2": _build_workload(f"{__name__}:gpt2", 32, (64,), vocab=65),
        "mlp": _build_workload("mlp:hidden=[2048,2048,2048]", 128, (784,)),
    }
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Settings of the comparison of forecasts.

    Attributes:
        out: Folder of the record.
        networks: Networks, by their names in `NETWORKS`.
        rows: Methods, each as ``name`` or ``name:option=value,option=value``.
        stages: Number of stages K, a process for each, cut by measured times.
        repetitions: Rounds; in each, there is a forecast for each network, and each row has a
            turn before and a turn after it.
        steps: Timed steps in a turn.
        threads: PyTorch threads in each process.
        foreign: Share of the machine that other programs may use in a turn that counts.
        retries: Number of retries of a disturbed turn.
        patience_s: Longest time to wait before each retry for other programs to end.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/plan")
    networks: Sequence[str] = tuple(NETWORKS)
    rows: Sequence[str] = ROWS
    stages: int = 2
    repetitions: int = 3
    steps: int = 4
    threads: int = 1
    foreign: float = 0.1
    retries: int = 1
    patience_s: float = 5

    def __post_init__(self) -> None:
        problems = [
            unknown_name("network", name, list(NETWORKS))
            for name in self.networks
            if name not in NETWORKS
        ]
        for row in self.rows:
            method = parse_method(row)
            if method.free_running:
                problems.append(f"the stages of {row!r} run freely, and take no common steps")
            if self.steps % method.accumulate:
                problems.append(
                    f"row {row!r} accumulates {method.accumulate} gradients; give a number of "
                    f"steps that is a multiple of it instead of {self.steps}"
                )
        check_settings(
            "cannot compare forecasts",
            self,
            at_least={1: ("repetitions", "steps", "threads"), 2: ("stages",)},
            not_empty=("networks", "rows"),
            problems=problems,
        )


DEFAULTS = PlanSettings()


def measure_plan(settings: PlanSettings = DEFAULTS) -> None:
    """Forecast and measure every method on every network alternately, and write the record.

    The forecasts are those of `hocket plan --same-machine`: the stages share this machine.

    Raises:
        HocketError: A process failed.
    """
    batches = {name: NETWORKS[name].batch for name in settings.networks}
    record = Record.from_settings("plan", settings, batches=batches)
    measured: list[dict[str, Any]] = []
    total = len(settings.networks) * settings.repetitions
    progress = Progress(console=Console(stderr=True), transient=True)
    with torch_threads(settings.threads), progress as bar:
        task = bar.add_task("", total=total)
        for name in settings.networks:
            bar.update(task, description=name)
            rows = _compare_network(name, settings, partial(bar.advance, task))
            for row in rows:
                print(_summarize_row(row), file=sys.stderr, flush=True)
            measured += rows
    record.with_rows(measured).write(settings.out)


def _compare_network(
    name: str, settings: PlanSettings, advance: Callable[[], None]
) -> list[dict[str, Any]]:
    """Return the rows of all methods on one network."""
    work = replace(NETWORKS[name], stages=settings.stages, threads=settings.threads)
    quiet = NoisePolicy(**select_fields(settings, NoisePolicy))
    steps = settings.steps
    build = work.network_and_batch
    (candidates,) = cut_by_time(build, [work.stages], settings.rows)
    imbalance = _measure_imbalance(work, candidates[0].cuts)
    forecasts: list[list[Forecast]] = []
    turns: list[list[tuple[Turn, Turn]]] = []
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(RowProcesses(one.method, _build_baseline(one, work), work))
            for one in candidates
        ]

        def take_turns() -> list[Turn]:
            return [take_turn(partial(run_repetition, one, steps), quiet) for one in worlds]

        for _ in range(settings.repetitions):
            # Before and after, as the machine's speed drifts during the rehearsals.
            before = take_turns()
            forecasts.append(
                predict_all(build, candidates, contended=True, repeat_reversed=False)
            )
            turns.append(list(zip(before, take_turns(), strict=True)))
            advance()
    added = [_measure_added_mib(work, candidate) for candidate in candidates]
    return [
        {"network": name, "imbalance": imbalance}
        | _build_row(
            candidate,
            work,
            [round_forecasts[index] for round_forecasts in forecasts],
            [round_turns[index] for round_turns in turns],
            settings,
        )
        | {"measured_mib": added[index]}
        for index, candidate in enumerate(candidates)
    ]


def _build_row(
    candidate: Candidate,
    work: Workload,
    forecasts: Sequence[Forecast],
    turns: Sequence[tuple[Turn, Turn]],
    settings: PlanSettings,
) -> dict[str, Any]:
    """Return forecast and measured times of one method.

    Args:
        candidate: The method and its cut.
        work: The workload.
        forecasts: The forecast of each round.
        turns: The turns before and after each forecast.
        settings: The settings.
    """
    predicted_ms = [1000 * forecast.tick_s / work.batch for forecast in forecasts]
    measured_ms = [
        1000 * mean(turn.counted.wall_s for turn in both) / settings.steps / work.batch
        for both in turns
    ]
    ratios = [p / m for p, m in zip(predicted_ms, measured_ms, strict=True)]
    return {
        "row": Named.parse(candidate.method).label,
        "cuts": list(candidate.cuts),
        "predicted_ms": median(predicted_ms),
        "measured_ms": median(measured_ms),
        "ratio": median(ratios),
        "ratios": ratios,
        # The drift of the machine: the time of the second turn, divided by that of the first.
        "drifts": [after.counted.wall_s / before.counted.wall_s for before, after in turns],
        # Without weights; half of the memory counted as weights are their gradients.
        "predicted_mib": [one.total - one.weights / 2 for one in forecasts[-1].memory],
        "disturbed": sum(
            (turn.counted.foreign or 0.0) > settings.foreign for both in turns for turn in both
        ),
    }


@dataclass(frozen=True)
class TrimmedBaseline:
    """A method whose processes return freed memory at once, and have not begun to train.

    Attributes:
        method: The method.
    """

    method: Decoupled

    @property
    def processes(self) -> int:
        """Number of processes, one for each stage."""
        return self.method.processes

    @property
    def threads(self) -> int:
        """Number of PyTorch threads in each process."""
        return self.method.threads

    def describe(self) -> dict[str, Any]:
        """Return the choices of the method."""
        return self.method.describe()

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the stage of this process, before its first batch."""
        release_free_memory()
        workload.plain_step()()  # kernels keep buffers of their own, which are not forecast
        trainer = workload.build_trainer(self.method.method, self.method.plan)
        state = network_state(trainer.network)
        return PreparedTraining(workload.trainer_step(trainer), workload.batch, state)


@dataclass(frozen=True)
class PeakMemoryQuery:
    """Query: return the peak memory that several steps add, in MiB.

    Attributes:
        steps: Number of steps.
    """

    steps: int

    def __call__(self, training: PreparedTraining) -> float:
        """Answer in the process."""
        gc.collect()
        release_free_memory()
        before_mib = reset_peak()
        for _ in range(self.steps):
            training.step()
        return peak_mib() - before_mib


def _measure_added_mib(work: Workload, candidate: Candidate) -> list[float]:
    """Return the peak memory that training adds to each process, in MiB."""
    baseline = _build_baseline(candidate, work)
    steps = work.warmup_steps(baseline.method) + 2
    with RowProcesses(candidate.method, TrimmedBaseline(baseline), work) as world:
        peaks_mib: list[float] = world.query(PeakMemoryQuery(steps))
        return peaks_mib


def _build_baseline(candidate: Candidate, work: Workload) -> Decoupled:
    method = parse_method(candidate.method)
    return Decoupled(method, Exact(), work.threads, Plan(candidate.cuts))


def _measure_imbalance(work: Workload, cuts: Sequence[str]) -> float:
    """Return the excess of the longest stage of a cut over that of the best of all cuts.

    All layers are timed once more, so that the times are not those that the cut was made by.
    """
    network, inputs, _ = work.network_and_batch()
    costs = measure_layers(find_cut_points(network, inputs))
    names = list(costs)
    layers = list(costs.values())
    chosen = tuple(names.index(cut) for cut in cuts)
    every = combinations(range(1, len(layers)), len(cuts))
    return _longest_s(layers, chosen) / min(_longest_s(layers, firsts) for firsts in every) - 1


def _longest_s(layers: Sequence[LayerCost], firsts: Sequence[int]) -> float:
    """Return the seconds of the longest stage, with the packets that it sends and receives.

    Args:
        layers: Costs of all layers.
        firsts: Indices of the first layers of stages 1, 2, ...
    """
    lengths_s = []
    for begin, end in pairwise([0, *firsts, len(layers)]):
        crossing = [layers[border - 1] for border in (begin, end) if 0 < border < len(layers)]
        compute_s = sum(layer.total_s for layer in layers[begin:end])
        send_s = sum(2 * ONE_MACHINE.seconds(layer.output_bytes) for layer in crossing)
        lengths_s.append(compute_s + send_s)
    return max(lengths_s)


def _summarize_row(row: Mapping[str, Any]) -> str:
    pairs = zip(row["predicted_mib"], row["measured_mib"], strict=True)
    memory = ", ".join(f"{predicted:.0f} for {measured:.0f}" for predicted, measured in pairs)
    return (
        f"{row['network']}, {row['row']}: {row['predicted_ms']:.2f} ms forecast for "
        f"{row['measured_ms']:.2f}, ratio {row['ratio']:.3f}; MiB {memory}; "
        f"{row['imbalance']:.1%} over the best cut"
    )
