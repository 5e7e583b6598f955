"""How well each method learns: training loss and test error per epoch, over several seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.jobs import carry_out, check_batch, fields_of
from benchmarks.harness.record import Record
from benchmarks.harness.training import TrainingJob
from hocket.errors import OptionError, listed
from hocket.options import Named

ROWS = ("bp", "ddg", "fr", "fdg", "fdg:shrink=0.5", "adl:accumulate=4", "dgl")


def accuracy(
    *,
    out: Path = Path("records/accuracy"),
    data_dir: Path | None = None,
    rows: Sequence[str] = ROWS,
    seeds: Sequence[int] = (0, 1),
    network: str = "resnet8",
    data: str = "cifar10",
    subset: int | None = None,
    stages: int = 2,
    epochs: int = 3,
    batch: int = 128,
    rate: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    milestones: Sequence[int] = (),
    channels_last: bool = True,
    threads: int = 1,
    jobs: int = 1,
    nice: int = 10,
) -> None:
    """Train every row with every seed, each in a process of its own, and write the record.

    Every training is saved in ``out/runs`` as it ends. Called again, the measurement goes on
    where it was; trainings that are there are not repeated.

    Args:
        out: Folder of the record.
        data_dir: Folder of the data, for data sets that read files.
        rows: Methods, each as ``method`` or ``method:option=value,option=value``.
        seeds: Seeds; all rows of a seed start from equal weights and see an equal order.
        network: Name in the zoo.
        data: Name of the data set.
        subset: Train on so many images only, for data sets that can.
        stages: K, cut as the paper did where there is one, else balanced.
        epochs: Epochs of each training.
        batch: Samples per update; a method that accumulates M gradients gets batch / M a tick.
        rate: Learning rate of SGD.
        momentum: Of SGD.
        weight_decay: Of SGD.
        milestones: Epochs after which the rate falls to a tenth; none keeps it constant.
        channels_last: Memory format.
        threads: Of each training.
        jobs: Trainings at a time.
        nice: How far each training steps back behind other processes, 0 to 19.

    Raises:
        OptionError: An option is out of range, or ``out`` has trainings with other settings.
        HocketError: A training failed; those that ended are kept.
    """
    chosen = dict(locals())
    common = fields_of(chosen) | {"milestones": tuple(milestones)}
    asked = [TrainingJob(row=row, seed=seed, **common) for seed in seeds for row in rows]
    _check(asked)
    begun = Record.of(accuracy, chosen, threads)
    record, results = carry_out(begun, asked, out / "runs", data_dir, jobs, nice)
    ended = zip(asked, results, strict=True)
    record.with_rows([row for job, result in ended for row in _rows(job, result)]).write(out)


def _check(asked: Sequence[TrainingJob]) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = []
    if not asked:
        problems.append("no rows or no seeds; give at least one of each")
    problems += check_batch(asked)
    if problems:
        raise OptionError(listed("cannot measure accuracy", problems))


def _rows(job: TrainingJob, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each epoch of a training, and one if it broke off."""
    own = {
        "row": Named.parse(job.row).label,
        "seed": job.seed,
        "batch_per_tick": job.batch_per_tick,
        "source": result["source"],
    }
    rows = [own | epoch | {"failure": None} for epoch in result["epochs"]]
    if result["failure"]:
        broken = {"epoch": len(result["epochs"]) + 1, "failure": result["failure"]}
        rows.append(own | broken)
    return rows
