"""How fast stages learn beside a slow one, where they keep step and where they do not."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, distributed, nn

from benchmarks.harness.record import Record
from hocket.distributed.launch import launch
from hocket.engine.event import Event
from hocket.errors import HocketError, OptionError, listed, too_small
from hocket.runs.build import parse_method
from hocket.stage import Stage
from hocket.training.trainer import Trainer

FEATURES = 8
CLASSES = 4


def straggler_throughput(
    *,
    out: Path = Path("records/pace"),
    methods: Sequence[str] = ("dgl", "dgl-async"),
    stages: int = 6,
    slowed: int = 3,
    factors: Sequence[float] = (1, 1.25, 1.5, 2, 3),
    batches: int = 100,
    batch: int = 8,
    turn_s: float = 0.05,
) -> None:
    """Time how many batches each stage learns in a second, with a process for each stage.

    The stages are tiny and then rest for as long as larger ones would have computed, so that
    as many of them as are wanted run beside each other on any machine.

    Args:
        out: Folder of the record.
        methods: The methods.
        stages: K.
        slowed: The stage that is slow.
        factors: How many times longer it rests.
        batches: How many batches each stage learns.
        batch: Samples of a batch.
        turn_s: How long a stage that is not slow rests for a batch, in seconds.

    Raises:
        OptionError: An option is out of range.
        HocketError: A process failed.
    """
    chosen = dict(locals())
    numbers = {"stages": stages, "batches": batches, "batch": batch}
    problems = too_small(numbers)
    if not 0 <= slowed < stages:
        problems.append(f"slowed is {slowed}; the {stages} stages are 0 to {stages - 1}")
    problems += [f"the factor {f} is no slow-down; give 1 or more" for f in factors if f < 1]
    if problems:
        raise OptionError(listed("cannot measure a pace", problems))
    for method in methods:
        parse_method(method)
    record = Record.of(straggler_throughput, chosen)
    rows = []
    for method in methods:
        for factor in factors:
            rests = [turn_s * (factor if k == slowed else 1) for k in range(stages)]
            rates = _rates(method, rests, batches, batch)
            rows.append({"row": method, "factor": factor, "batches_per_s": rates})
            told = ", ".join(f"{rate:.1f}" for rate in rates)
            print(f"{method}, {factor:g} times: {told} batches/s", file=sys.stderr, flush=True)
    record.with_rows(rows).write(out)


def _rates(method: str, rests: Sequence[float], batches: int, batch: int) -> list[float]:
    """Batches that each stage learned in a second."""
    with TemporaryDirectory() as folder:
        work = (folder, method, list(rests), batches, batch)
        if launch(_work, *work, processes=len(rests), threads=1):
            raise HocketError(f"a process of {method!r} failed; what it said is above")
        files = [Path(folder, f"{rank}.json") for rank in range(len(rests))]
        return [json.loads(file.read_text()) for file in files]


class Resting(nn.Module):
    """A layer that rests before it gives what it got."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def forward(self, values: Tensor) -> Tensor:
        """The same values, later."""
        time.sleep(self._seconds)
        return values


def _work(folder: str, method: str, rests: list[float], batches: int, batch: int) -> int:
    """What each process does: train, and note when its stage learned its batches."""
    torch.manual_seed(0)
    modules = [
        nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), Resting(rest)) for rest in rests
    ]
    modules[-1].append(nn.Linear(FEATURES, CLASSES))
    learned: list[float] = []

    def watch(event: Event, stage: Stage) -> None:
        if event.action.kind == "U":
            learned.append(time.perf_counter())

    trainer = Trainer(
        modules,
        method=parse_method(method),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        watchers=[watch],
    )
    data = [
        (torch.randn(batch, FEATURES), torch.randint(CLASSES, (batch,))) for _ in range(batches)
    ]
    trainer.fit(data, epochs=1, progress=False)
    # Of the second half, when all stages have long begun.
    half = learned[len(learned) // 2 :]
    rate = (len(half) - 1) / (half[-1] - half[0])
    Path(folder, f"{distributed.get_rank()}.json").write_text(json.dumps(rate))
    return 0
