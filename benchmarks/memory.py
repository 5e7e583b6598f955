"""Memory of each stage of a reversible network over the number of stages, and so the delay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import torch
from cyclopts import Parameter
from torch import nn

from benchmarks.harness.allocations import trace_allocations
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings
from hocket import Trainer, cross_entropy
from hocket.methods import Method, parse_method
from hocket.partition.costs.profile import profile
from hocket.stage.setup import Setup
from hocket.zoo.residual import average_head, basic_body
from hocket.zoo.revnet import Coupling
from hocket_lab.planner.predict import stage_mib
from hocket_lab.planner.rehearse import rehearse

MIB = 2**20
BLOCKS, WIDTH, BATCH = 12, 24, 64
SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Settings of the measurement of memory.

    Attributes:
        out: Folder of the record.
        rows: Methods.
        stages: Numbers of stages, between which the reversible blocks are divided.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/memory")
    rows: Sequence[str] = ("fdg", "adl:accumulate=4", "paci:accumulate=4", "petra")
    stages: Sequence[int] = (2, 3, 4, 6)

    def __post_init__(self) -> None:
        for row in self.rows:
            parse_method(row)
        check_settings(
            "cannot measure memory",
            self,
            not_empty=("rows", "stages"),
            problems=[
                f"stages is {count}; give 1 to {BLOCKS}, as many as there are blocks"
                for count in self.stages
                if not 1 <= count <= BLOCKS
            ],
        )


DEFAULTS = MemorySettings()


def measure_memory(settings: MemorySettings = DEFAULTS) -> None:
    """Predict and measure the memory of all stages, and write the record."""
    record = Record.from_settings("memory", settings, batch=BATCH, blocks=BLOCKS)
    batch = torch.randn(BATCH, 2 * WIDTH, 8, 8), torch.zeros(BATCH, dtype=torch.long)
    rows = []
    for row, stages in product(settings.rows, settings.stages):
        method, modules = parse_method(row), build_stages(stages)
        setup = Setup(method=method, loss=cross_entropy, optimizer=SGD)
        sizes = {
            "predicted": predict_stages(method, modules, batch[0]),
            "measured": [stage.peak_bytes / MIB for stage in rehearse(setup, modules, *batch)],
            "together": train_together(method, stages, *batch),
        }
        rows.append({"row": row, "stages": stages} | sizes)
    record.with_rows(rows).write(settings.out)


def build_stages(stages: int) -> list[nn.Module]:
    """Return the stages of a network in which all layers but the head are reversible."""
    blocks = [Coupling(basic_body(WIDTH, WIDTH, 1)) for _ in range(BLOCKS)]
    layers = [*blocks, average_head(2 * WIDTH, 10)]
    bounds = [*(BLOCKS * k // stages for k in range(stages)), len(layers)]
    return [nn.Sequential(*layers[a:b]) for a, b in pairwise(bounds)]


def predict_stages(method: Method, modules: list[nn.Module], x: torch.Tensor) -> list[float]:
    """Return the memory of each stage in MiB, by the method's counts and the layers' costs."""
    costs = profile({str(k): module for k, module in enumerate(modules)}, x, repetitions=1)
    return [
        stage_mib(method.memory(k, len(modules)), cost.weight_bytes, cost.kept_bytes, x.nbytes)
        for k, cost in enumerate(costs.values())
    ]


def train_together(method: Method, stages: int, *batch: torch.Tensor) -> float:
    """Return the peak of all tensors, in MiB, of a training with all stages in this process."""

    def run() -> Iterator[None]:
        trainer = Trainer(build_stages(stages), method=method, optimizer=SGD)
        for _ in range(method.delay(0, stages) + 2 * method.accumulate + 1):
            trainer.step(*batch)
            yield

    return max(each.peak for each in trace_allocations(run())) / MIB
