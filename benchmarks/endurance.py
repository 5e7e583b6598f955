"""Memory, threads and descriptors of trainings with very many ticks."""

import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cyclopts import Parameter
from torch import nn

from benchmarks.harness.process_memory import held_mib
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings
from hocket.distributed.launching.launch import launch
from hocket.errors import HocketError, unknown_name
from hocket.methods import parse_method
from hocket.training.trainer import Trainer

WIDTH, BATCH = 16, 8


@dataclass(frozen=True)
class EnduranceCase:
    """One training.

    Attributes:
        method: The method.
        stages: Number of stages.
        processes: Number of processes: one, or one for each stage.
        share: Part of the ticks that it makes, where a tick takes long.
    """

    method: str
    stages: int
    processes: int
    share: float = 1.0


CASES: Mapping[str, EnduranceCase] = {
    "fdg, 2 stages, 1 process": EnduranceCase("fdg", 2, 1),
    "dgl-async, 2 stages, 1 process": EnduranceCase("dgl-async", 2, 1),
    "fdg, 2 stages, 2 processes": EnduranceCase("fdg", 2, 2),
    "dgl-async, 2 stages, 2 processes": EnduranceCase("dgl-async", 2, 2),
    "fdg, 12 stages, 1 process": EnduranceCase("fdg", 12, 1, share=0.1),
    "fdg, 8 stages, 8 processes": EnduranceCase("fdg", 8, 8, share=0.1),
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EnduranceSettings:
    """Settings of the measurement of what many ticks leave behind.

    Attributes:
        out: Folder of the record.
        rows: Trainings, by their names in `CASES`.
        ticks: Ticks of each training; those with a long tick make a tenth of them.
        samples: Number of times that memory, threads and descriptors are counted.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/endurance")
    rows: Sequence[str] = tuple(CASES)
    ticks: int = 100_000
    samples: int = 20

    def __post_init__(self) -> None:
        check_settings(
            "cannot measure endurance",
            self,
            at_least={2: ("samples",), 100: ("ticks",)},
            not_empty=("rows",),
            problems=[
                unknown_name("row", row, list(CASES)) for row in self.rows if row not in CASES
            ],
        )


DEFAULTS = EnduranceSettings()


def measure_endurance(settings: EnduranceSettings = DEFAULTS) -> None:
    """Make the ticks of every training, and write the record.

    Raises:
        HocketError: A training failed.
    """
    record = Record.from_settings("endurance", settings)
    rows = []
    for name in settings.rows:
        case = CASES[name]
        every = max(1, round(settings.ticks * case.share / settings.samples))
        rows.append({"row": name} | _measure_case(case, settings.samples, every))
        line = f"{name}: {rows[-1]['growth_bytes']:.1f} bytes more after each tick"
        print(line, file=sys.stderr, flush=True)
    record.with_rows(rows).write(settings.out)


def _measure_case(case: EnduranceCase, samples: int, every: int) -> dict[str, Any]:
    """Return the counts of the process of a training whose memory grows most.

    Raises:
        HocketError: The training failed.
    """
    with TemporaryDirectory() as folder:
        arguments = (asdict(case), samples, every, folder)
        code = launch(train_and_count, *arguments, processes=case.processes, threads=1)
        if code:
            raise HocketError(f"{case} ended with {code}")
        found = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
    return max(
        ({**one, "growth_bytes": _growth_bytes(one, every)} for one in found),
        key=lambda one: one["growth_bytes"],
    )


def _growth_bytes(counts: Mapping[str, Any], every: int) -> float:
    """Return the growth of memory in bytes per tick, over the second half of the samples."""
    later: Sequence[float] = counts["memory_mib"][len(counts["memory_mib"]) // 2 :]
    return 2**20 * (later[-1] - later[0]) / (max(1, len(later) - 1) * every)


def train_and_count(case: Mapping[str, Any], samples: int, every: int, folder: str) -> int:
    """Train in one process of a launch, and write its counts as JSON into a folder.

    Args:
        case: Fields of the case.
        samples: Number of times to count.
        every: Ticks between two counts.
        folder: Path of the folder.
    """
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(case["stages"])]
    batch = torch.randn(BATCH, WIDTH), torch.randint(WIDTH, (BATCH,))
    counts: dict[str, list[float]] = {"memory_mib": [], "threads": [], "descriptors": []}
    with Trainer(
        modules,
        method=parse_method(case["method"]),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=1e-4, momentum=0.9),
    ) as trainer:
        for _ in range(samples):
            for _ in range(every):
                trainer.step(*batch)
            gc.collect()
            counts["memory_mib"].append(held_mib())
            counts["threads"].append(len(os.listdir("/proc/self/task")))
            counts["descriptors"].append(len(os.listdir("/proc/self/fd")))
    result = counts | {"ticks": samples * every}
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(result))
    return 0
