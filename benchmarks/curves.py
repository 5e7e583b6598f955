"""How the training loss falls, update by update, in networks that were not written here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness.jobs import carry_out, check_batch, fields_of
from benchmarks.harness.record import Record
from benchmarks.harness.training import TrainingJob
from hocket.errors import OptionError, listed
from hocket.options import Named

# What the others are compared with. Its result is the same for any cut, so it has none.
BASE = "bp"
# A scale of 1 in place of 1e-6, which trains only after many more updates than these.
CONVNEXT = "hf_convnext:hidden_sizes=[16,32,64,128],depths=[1,1,2,1],layer_scale_init_value=1.0"


def curves(
    *,
    out: Path = Path("records/curves"),
    data_dir: Path | None = None,
    network: str = CONVNEXT,
    data: str = "cifar10",
    rows: Sequence[str] = ("fdg", "adl:accumulate=4", "ddg"),
    stages: Sequence[int] = (2, 4),
    seeds: Sequence[int] = (0, 1),
    updates: int = 400,
    every: int = 10,
    batch: int = 32,
    optimizer: str = "AdamW:lr=0.001",
    threads: int = 1,
    jobs: int = 1,
    nice: int = 10,
) -> None:
    """Train by back-propagation, and by every row on every number of stages.

    Every training has a process of its own, and is saved in ``out/runs`` as it ends. Called
    again, the measurement goes on where it was.

    Args:
        out: Folder of the record.
        data_dir: Folder of the data, or its file, for data sets that read files.
        network: Name in the zoo, with options.
        data: Name of the data set.
        rows: Methods, each as ``method`` or ``method:option=value,option=value``.
        stages: Numbers of stages K, balanced.
        seeds: Seeds; all rows of a seed start from equal weights and see an equal order.
        updates: Of each training.
        every: Updates in a point of a curve, which is the mean of their losses.
        batch: Samples per update; a method that accumulates M gradients gets batch / M a tick.
        optimizer: An optimizer of torch.optim, at a constant rate.
        threads: Of each training.
        jobs: Trainings at a time.
        nice: How far each training steps back behind other processes, 0 to 19.

    Raises:
        OptionError: An option is out of range, or ``out`` has trainings with other settings.
        HocketError: A training failed; those that ended are kept.
    """
    chosen = dict(locals())
    cases = [(BASE, 1), *((row, count) for count in stages for row in rows)]
    common = fields_of(chosen) | {"epochs": 1, "subset": None, "evaluate": "end"}
    asked = [
        TrainingJob(**(common | {"row": row, "stages": count, "seed": seed}))
        for seed in seeds
        for row, count in cases
    ]
    _check(asked, updates, every)
    begun = Record.of(curves, chosen, threads)
    record, results = carry_out(begun, asked, out / "runs", data_dir, jobs, nice)
    ended = zip(asked, results, strict=True)
    record.with_rows([_row(job, result, every) for job, result in ended]).write(out)


def _check(asked: Sequence[TrainingJob], updates: int, every: int) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = check_batch(asked)
    if not 1 <= every <= updates or updates % every:
        problems.append(
            f"{updates} updates make no points of {every} each; give a multiple of it"
        )
    if problems:
        raise OptionError(listed("cannot measure curves", problems))


def _row(job: TrainingJob, result: Mapping[str, Any], every: int) -> dict[str, Any]:
    """What one training came to; if it broke off, with the points up to there."""
    last = result["epochs"][-1] if result["epochs"] else {}
    losses, length = result["losses"], every * job.accumulate
    points = [losses[start : start + length] for start in range(0, len(losses), length)]
    return {
        "row": Named.parse(job.row).label,
        "stages": job.stages,
        "seed": job.seed,
        "batch_per_tick": job.batch_per_tick,
        "parameters": result["parameters"],
        "train_losses": [round(fmean(point), 4) for point in points],
        "test_loss": last.get("test_loss"),
        "test_error": last.get("test_error"),
        "staleness": last.get("staleness"),
        "time_s": last.get("time_s"),
        "source": result["source"],
        "failure": result["failure"],
    }
