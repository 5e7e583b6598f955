"""Comparison of the serial engine with plain and compiled loops on one GPU, CUDA graphs too."""

import gc
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from cyclopts import Parameter

from benchmarks.harness.record import Record
from benchmarks.harness.rounds import TimedStep, summarize_pairs, time_block, time_turns
from benchmarks.harness.settings import check_settings
from benchmarks.harness.workload import PLAIN, Workload
from hocket.distributed.launching.launch import launch
from hocket.errors import HocketError, OptionError, unknown_name
from hocket.methods import parse_method
from hocket.training.trainer import Trainer
from hocket.tree import map_tensors

IMAGES = Workload(
    network="resnet20", shape=(3, 32, 32), batch=128, stages=1, threads=1, channels_last=True
)
WORKLOADS: Mapping[str, Workload] = {
    "perceptron": replace(
        IMAGES, network="mlp:hidden=[256,256,256,256]", shape=(64,), channels_last=False
    ),
    "resnet20": IMAGES,
    "wrn28_10": replace(IMAGES, network="wrn28_10"),
    "gpt": replace(
        IMAGES,
        network="gpt:width=384,depth=6,heads=6,context=256",
        shape=(256,),
        batch=32,
        classes=256,
        tokens=True,
        channels_last=False,
    ),
}
"""Networks with their batches; the GPT has ten million parameters."""
COMPILED = "compiled"
"""The row of a plain loop whose network is compiled."""


class GpuRow(NamedTuple):
    """A training that is compared with a plain loop.

    Attributes:
        method: The method; ``plain`` and ``compiled`` for loops without Hocket.
        stages: Number of stages.
        apart: True for a process for each stage, all on the same GPU.
        compile: True for compiled stages.
        streams: True for stages on separate streams; without effect on the processor.
        resumable: True to keep what a checkpoint needs, as `hocket train` does by default.
        graphs: True to replay CUDA graphs; without effect on the processor.
    """

    method: str
    stages: int = 1
    apart: bool = False
    compile: bool = False
    streams: bool = False
    resumable: bool = False
    graphs: bool = False


ROWS: Mapping[str, GpuRow] = {
    PLAIN: GpuRow(PLAIN),
    COMPILED: GpuRow(COMPILED),
    "bp": GpuRow("bp"),
    "fdg, 2 stages": GpuRow("fdg", 2),
    "fdg, 2 stages, resumable": GpuRow("fdg", 2, resumable=True),
    "fdg, 4 stages": GpuRow("fdg", 4),
    "ddg, 4 stages": GpuRow("ddg", 4),
    "dgl, 2 stages": GpuRow("dgl", 2),
    "fdg, 2 processes": GpuRow("fdg", 2, apart=True),
    "bp, compiled": GpuRow("bp", compile=True),
    "fdg, 2 stages, compiled": GpuRow("fdg", 2, compile=True),
    "fdg, 4 stages, streams": GpuRow("fdg", 4, streams=True),
}
PAIRED: Mapping[str, GpuRow] = {
    "bp": GpuRow("bp"),
    "fdg, 2 stages": GpuRow("fdg", 2),
    "fdg, 4 stages": GpuRow("fdg", 4),
    "paci, 2 stages": GpuRow("paci", 2),
    "dgl, 2 stages": GpuRow("dgl", 2),
}
GRAPH_ROWS: Mapping[str, GpuRow] = {COMPILED: GpuRow(COMPILED)} | {
    f"{name}, graphs" if graphs else name: row._replace(graphs=graphs)
    for name, row in PAIRED.items()
    for graphs in (False, True)
}
ALL_ROWS = {**ROWS, **GRAPH_ROWS}
BITS_STEPS = 24
"""Steps after which the weights with and without graphs are compared."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """Settings of the comparison on a GPU.

    Attributes:
        out: Folder of the record.
        device: The GPU; ``cpu`` shows that the measurement works.
        networks: Networks, by their names in `WORKLOADS`.
        rows: Trainings, by their names in `ALL_ROWS`.
        pairs: Blocks of each side; the ratio is the median over pairs.
        steps: Timed steps in a block.

    Raises:
        OptionError: A setting is out of range, or there is no such device.
    """

    out: Path = Path("records/gpu")
    device: str = "cuda"
    networks: Sequence[str] = tuple(WORKLOADS)
    rows: Sequence[str] = tuple(ROWS)
    pairs: int = 5
    steps: int = 20

    def __post_init__(self) -> None:
        check_settings(
            "cannot measure on a GPU",
            self,
            at_least={1: ("pairs", "steps")},
            not_empty=("networks", "rows"),
            problems=[
                unknown_name(kind, name, known)
                for kind, names, known in (
                    ("network", self.networks, list(WORKLOADS)),
                    ("row", self.rows, list(ALL_ROWS)),
                )
                for name in names
                if name not in known
            ],
        )


DEFAULTS = GpuSettings()


def measure_gpu(settings: GpuSettings = DEFAULTS) -> None:
    """Time every row and a plain loop alternately, and write the record after each row.

    Raises:
        OptionError: There is no such device.
        HocketError: A launched training failed.
    """
    compare_rows("gpu", settings)


def compare_rows(name: str, settings: GpuSettings) -> None:
    """Time the rows of these settings for the record of this name.

    Raises:
        OptionError: There is no such device.
        HocketError: A launched training failed.
    """
    if settings.device != "cpu" and not torch.cuda.is_available():
        raise OptionError(f"device is {settings.device!r}, and PyTorch finds no GPU here")
    record = Record.from_settings(name, settings)
    rows = []
    for network in settings.networks:
        for label in settings.rows:
            row = ALL_ROWS[label]
            times = time_row(settings, network, row)
            bits = same_bits(network, row, settings.device) if row.graphs else None
            rows.append({"network": network, "row": label, "same_bits": bits} | times)
            told = "" if bits is None else f", same bits: {bits}"
            line = f"{network}, {label}: {times['ratio']:.3f}{told}"
            print(line, file=sys.stderr, flush=True)
            record.with_rows(rows).write(settings.out)


def time_row(settings: GpuSettings, network: str, row: GpuRow) -> dict[str, Any]:
    """Return the times of a row, its overhead and its memory."""
    # Build the plain loop.
    device = torch.device(settings.device)
    work = replace(WORKLOADS[network], stages=row.stages)
    gc.collect()  # trainers of rows before, whose memory would count
    plain = _loop(work, device, compiled=False)

    # Time it and the row, in turns if both are in this process.
    time_both = partial(
        time_turns,
        rounds=settings.pairs,
        steps=settings.steps,
        synchronize=partial(_synchronize, device),
    )
    peak_mib = None
    if row.apart:
        apart_s = _time_apart(settings, work, row)
        times = time_both({"plain": plain}) | {"other": apart_s}
    else:
        step = _step(work, row, device)
        times = time_both({"plain": plain, "other": step})
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            for _ in range(settings.steps):
                step()
            peak_mib = torch.cuda.max_memory_allocated(device) / 2**20

    # Compare them.
    summary = summarize_pairs(times["plain"], times["other"], settings.steps * work.batch)
    added_s = work.batch * (summary["sample_s"] - summary["plain_sample_s"])
    return summary | {
        "stages": row.stages,
        "batch": work.batch,
        "stage_tick_ms": 1000 * added_s / row.stages,
        "peak_mib": peak_mib,
    }


def _step(work: Workload, row: GpuRow, device: torch.device) -> TimedStep:
    """Build a step of a row, and fill its pipeline."""
    if row.method in (PLAIN, COMPILED):
        step = _loop(work, device, compiled=row.method == COMPILED)
    else:
        _, step = _build_trainer(work, row, device)
    for _ in range(6 * row.stages if row.graphs else 3 * row.stages):
        step()
    return step


def _loop(work: Workload, device: torch.device, *, compiled: bool) -> TimedStep:
    """Build a step of a plain loop that reads nothing from the device."""
    work = replace(work, compile=compiled)
    network = work.build_network().to(device)
    batch = map_tensors(lambda tensor: tensor.to(device), work.example_batch())
    step = work.loop_step(network, repeat(batch), reads_loss=False)
    step()
    return step


def _build_trainer(
    work: Workload, row: GpuRow, device: torch.device
) -> tuple[Trainer, TimedStep]:
    """Build a trainer on a device, and its step."""
    work = replace(work, compile=row.compile)
    on_gpu = device.type == "cuda"
    trainer = work.build_trainer(
        parse_method(row.method),
        device=device,
        streams=row.streams and on_gpu,
        cuda_graphs=row.graphs and on_gpu,
        resumable=row.resumable,
    )
    inputs, targets = map_tensors(lambda tensor: tensor.to(device), work.example_batch())
    # A tick of `fit`, which reads a loss only if a line is due; `step` reads it in each tick.
    return trainer, lambda: trainer._session.ticks.step(inputs, targets, 0)


def same_bits(network: str, row: GpuRow, device: str) -> bool:
    """Return whether stages learn the same with and without graphs, by the same kernels."""
    work, weights = replace(WORKLOADS[network], stages=row.stages), []
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for graphs in (False, True):
            own = row._replace(graphs=graphs)
            trainer, step = _build_trainer(work, own, torch.device(device))
            for _ in range(BITS_STEPS):
                step()
            trainer.finish()
            weights.append(list(trainer.state_dict().values()))
    finally:
        torch.use_deterministic_algorithms(False)
    return all(map(torch.equal, *weights))


def _time_apart(settings: GpuSettings, work: Workload, row: GpuRow) -> list[float]:
    """Return the seconds of each block of a training with a process for each stage.

    Raises:
        HocketError: The training failed.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder, "times.json")
        arguments = (work, row, settings.device, settings.pairs, settings.steps)
        code = launch(time_process, *arguments, str(file), processes=row.stages, threads=1)
        if code:
            raise HocketError(f"{row.method} in {row.stages} processes ended with {code}")
        seconds: list[float] = json.loads(file.read_text())
    return seconds


def time_process(
    work: Workload, row: GpuRow, device: str, pairs: int, steps: int, file: str
) -> int:
    """Train one stage in a process of a launch; the first writes the seconds of its blocks."""
    step = _step(work, row, torch.device(device))
    synchronize = partial(_synchronize, torch.device(device))
    blocks_s = [time_block(step, steps, synchronize) for _ in range(pairs)]
    if torch.distributed.get_rank() == 0:
        Path(file).write_text(json.dumps(blocks_s))
    return 0


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
