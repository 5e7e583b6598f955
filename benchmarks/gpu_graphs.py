"""Comparison of stages with and without CUDA graphs with plain loops on one GPU."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from cyclopts import Parameter

from benchmarks.gpu import COMPILED, WORKLOADS, GpuRow, GpuSettings, time_row
from benchmarks.harness.record import Record
from hocket.errors import OptionError
from hocket.methods import parse_method
from hocket.tree import map_tensors

PAIRED: Mapping[str, GpuRow] = {
    "bp": GpuRow("bp"),
    "fdg, 2 stages": GpuRow("fdg", 2),
    "fdg, 4 stages": GpuRow("fdg", 4),
    "paci, 2 stages": GpuRow("paci", 2),
    "dgl, 2 stages": GpuRow("dgl", 2),
}
ROWS: Mapping[str, GpuRow] = {COMPILED: GpuRow(COMPILED)} | {
    f"{name}, graphs" if graphs else name: row._replace(graphs=graphs)
    for name, row in PAIRED.items()
    for graphs in (False, True)
}
BITS_STEPS = 24
"""Steps after which the weights with and without graphs are compared."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """Settings of the comparison.

    Attributes:
        out: Folder of the record.
        device: The GPU; ``cpu`` shows that the measurement works, without graphs.
        networks: Networks, by their names in `WORKLOADS`.
        pairs: Blocks of each side; the ratio is the median over pairs.
        steps: Timed steps in a block.
    """

    out: Path = Path("records/gpu-graphs")
    device: str = "cuda"
    networks: Sequence[str] = ("perceptron", "resnet20", "gpt")
    pairs: int = 3
    steps: int = 20


DEFAULTS = GraphSettings()


def measure_gpu_graphs(settings: GraphSettings = DEFAULTS) -> None:
    """Time every row and a plain loop alternately, and write the record after each row.

    Raises:
        OptionError: There is no such device, network or row.
    """
    given = GpuSettings(**vars(settings))
    if settings.device != "cpu" and not torch.cuda.is_available():
        raise OptionError(f"device is {settings.device!r}, and PyTorch finds no GPU here")
    record = Record.from_settings("gpu", settings)
    rows = []
    for network in settings.networks:
        for name, row in ROWS.items():
            times = time_row(given, network, row)
            bits = same_bits(network, row, settings.device) if row.graphs else None
            rows.append({"network": network, "row": name, "same_bits": bits} | times)
            print(f"{network}, {name}: {times['ratio']:.3f}, {bits}", file=sys.stderr)
            record.with_rows(rows).write(settings.out)


def same_bits(network: str, row: GpuRow, device: str) -> bool:
    """Return whether stages learn the same with and without graphs, by the same kernels."""
    weights = []
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for graphs in (False, device != "cpu"):
            work = replace(WORKLOADS[network], stages=row.stages)
            trainer = work.build_trainer(
                parse_method(row.method), device=torch.device(device), cuda_graphs=graphs
            )
            batch = work.example_batch()
            inputs, targets = map_tensors(lambda tensor: tensor.to(device), batch)
            for _ in range(BITS_STEPS):
                trainer._session.ticks.step(inputs, targets, 0)
            trainer.finish()
            weights.append(list(trainer.state_dict().values()))
    finally:
        torch.use_deterministic_algorithms(False)
    return all(map(torch.equal, *weights))
