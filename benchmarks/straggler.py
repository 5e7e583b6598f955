"""Throughput of all stages while one is slow, in lockstep and free-running."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from cyclopts import Parameter
from torch import Tensor, distributed, nn

from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings, stage_problem
from hocket.distributed.launching.launch import launch
from hocket.engine.event import Event
from hocket.errors import HocketError
from hocket.methods import parse_method
from hocket.stage import Stage
from hocket.training.trainer import Trainer

FEATURES = 8
CLASSES = 4


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StragglerSettings:
    """Settings of the measurement of throughput.

    Attributes:
        out: Folder of the record.
        methods: The methods.
        stages: Number of stages K.
        slowed: The slow stage.
        factors: Slow-downs of that stage.
        batches: Batches that each stage learns.
        batch: Samples in a batch.
        turn_s: Time that every other stage sleeps for a batch, in seconds.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/straggler")
    methods: Sequence[str] = ("dgl", "dgl-async")
    stages: int = 6
    slowed: int = 3
    factors: Sequence[float] = (1, 1.25, 1.5, 2, 3)
    batches: int = 100
    batch: int = 8
    turn_s: float = 0.05

    def __post_init__(self) -> None:
        for method in self.methods:
            parse_method(method)
        problems = stage_problem("slowed", self.slowed, self.stages)
        problems += [
            f"a factor is {factor:g}; give 1 or more" for factor in self.factors if factor < 1
        ]
        check_settings(
            "cannot measure the throughput",
            self,
            at_least={1: ("stages", "batches", "batch")},
            problems=problems,
        )

    def sleeps_s(self, factor: float) -> list[float]:
        """Return the seconds that each stage sleeps for a batch."""
        return [
            self.turn_s * (factor if stage == self.slowed else 1)
            for stage in range(self.stages)
        ]


DEFAULTS = StragglerSettings()


def measure_straggler(settings: StragglerSettings = DEFAULTS) -> None:
    """Measure how many batches each stage learns in a second, with a process for each stage.

    The stages are tiny, and sleep for as long as larger ones would have computed, so that any
    number of them runs at the same time on any machine.

    Raises:
        HocketError: A process failed.
    """
    record = Record.from_settings("straggler", settings)
    rows = []
    for method in settings.methods:
        for factor in settings.factors:
            rates = _measure_rates(settings, method, factor)
            rows.append({"row": method, "factor": factor, "batches_per_s": rates})
            shown = ", ".join(f"{rate:.1f}" for rate in rates)
            print(f"{method}, {factor:g} times: {shown} batches/s", file=sys.stderr, flush=True)
    record.with_rows(rows).write(settings.out)


def _measure_rates(settings: StragglerSettings, method: str, factor: float) -> list[float]:
    """Return the batches that each stage learned in a second.

    Raises:
        HocketError: A process of the training failed.
    """
    with TemporaryDirectory() as folder:
        arguments = (folder, settings, method, factor)
        if launch(_train_stage, *arguments, processes=settings.stages, threads=1):
            raise HocketError(
                f"a process of {method!r} failed; its output is above this message"
            )
        files = [Path(folder, f"{rank}.json") for rank in range(settings.stages)]
        return [json.loads(file.read_text()) for file in files]


class SlowLayer(nn.Module):
    """A layer that sleeps before it returns its input."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def forward(self, values: Tensor) -> Tensor:
        """Return the same values (B, D) later."""
        time.sleep(self._seconds)
        return values


def _train_stage(folder: str, settings: StragglerSettings, method: str, factor: float) -> int:
    """Run the process of one stage: train, and write the rate at which it learned."""
    torch.manual_seed(0)
    modules = [
        nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), SlowLayer(sleep_s))
        for sleep_s in settings.sleeps_s(factor)
    ]
    modules[-1].append(nn.Linear(FEATURES, CLASSES))
    learned_s: list[float] = []

    def watch(event: Event, stage: Stage) -> None:
        if event.action.kind == "U":
            learned_s.append(time.perf_counter())

    trainer = Trainer(
        modules,
        method=parse_method(method),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        watchers=[watch],
    )
    data = [
        (torch.randn(settings.batch, FEATURES), torch.randint(CLASSES, (settings.batch,)))
        for _ in range(settings.batches)
    ]
    trainer.fit(data, epochs=1, progress=False)
    # The rate of the second half, when all stages are in a steady state.
    half_s = learned_s[len(learned_s) // 2 :]
    rate = (len(half_s) - 1) / (half_s[-1] - half_s[0])
    Path(folder, f"{distributed.get_rank()}.json").write_text(json.dumps(rate))
    return 0
