"""How well each method learns: training loss and test error per epoch, over several seeds."""

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hocket.bench.process import in_own_process
from hocket.bench.record import Record, command_line, read_json, write_json
from hocket.bench.training import Job
from hocket.errors import HocketError, OptionError, listed
from hocket.named import Named
from hocket.parts import method_of

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
    asked = [
        Job(
            row=row,
            seed=seed,
            network=network,
            data=data,
            subset=subset,
            stages=stages,
            epochs=epochs,
            batch=batch,
            rate=rate,
            momentum=momentum,
            weight_decay=weight_decay,
            milestones=tuple(milestones),
            channels_last=channels_last,
            threads=threads,
        )
        for seed in seeds
        for row in rows
    ]
    _check(asked, jobs)
    settings = {name: v for name, v in chosen.items() if name not in ("out", "data_dir")}
    settings |= {"rows": list(rows), "seeds": list(seeds), "milestones": list(milestones)}
    command = command_line("hocket bench accuracy", accuracy, chosen)
    record = _certificate(Record.begin("accuracy", command, settings, threads), out / "runs")
    missing = [job for job in asked if not _is_done(job, out / "runs")]
    _carry_out(missing, out / "runs", data_dir, jobs, nice, done=len(asked) - len(missing))
    record.with_rows(_rows(asked, out / "runs")).write(out)


def _check(asked: Sequence[Job], jobs: int) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = []
    if not asked:
        problems.append("no rows or no seeds; give at least one of each")
    if jobs < 1:
        problems.append(f"jobs is {jobs}; give 1 or more")
    for row in dict.fromkeys(job.row for job in asked):
        accumulate = method_of(row).accumulate
        if asked[0].batch % accumulate:
            problems.append(
                f"row {row!r} accumulates {accumulate} gradients; give a batch that is a "
                f"multiple of it instead of {asked[0].batch}"
            )
    if len({job.file for job in asked}) < len(asked):
        problems.append("a row or a seed is listed twice; list each once")
    if problems:
        raise OptionError(listed("cannot measure accuracy", problems))


def _certificate(begun: Record, folder: Path) -> Record:
    """The certificate of the first call into this folder, with what this call asks for.

    Rows name the code that they were measured with, so a mixture would show.
    """
    path = folder / "begun.json"
    if path.is_file():
        first = Record(**read_json(path))
        return dataclasses.replace(first, command=begun.command, settings=begun.settings)
    write_json(path, dataclasses.asdict(begun))
    return begun


def _is_done(job: Job, folder: Path) -> bool:
    """Whether the result of a job is there."""
    path = folder / job.file
    if not path.is_file():
        return False
    kept, wanted = read_json(path)["job"], json.loads(json.dumps(dataclasses.asdict(job)))
    differing = [name for name in wanted if kept.get(name) != wanted[name]]
    if differing:
        shown = ", ".join(f"{name} {kept.get(name)} != {wanted[name]}" for name in differing)
        raise OptionError(
            f"{path} was measured with other settings ({shown}); "
            "choose another folder, or delete this one"
        )
    return True


def _carry_out(
    missing: Sequence[Job], folder: Path, data_dir: Path | None, jobs: int, nice: int, done: int
) -> None:
    """Run jobs, some at a time, and save each as it ends."""
    failures: list[str] = []
    finished = done
    total = done + len(missing)

    def run(job: Job) -> None:
        nonlocal finished
        start = time.perf_counter()
        words = [json.dumps(dataclasses.asdict(job)), str(data_dir or ""), str(nice)]
        try:
            printed = in_own_process("hocket.bench.training", *words, threads=job.threads)
        except HocketError as error:
            failures.append(f"{job.file}: {error}")
            outcome = "failed"
        else:
            result = json.loads(printed)
            write_json(folder / job.file, result)
            outcome = result["failure"] or _outcome(result["epochs"])
        finished += 1
        time_s = time.perf_counter() - start
        line = f"[{finished}/{total}] {job.row} seed {job.seed}: {outcome}, {time_s:.0f} s"
        print(line, file=sys.stderr, flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, missing))
    if failures:
        raise HocketError(listed("these trainings failed, the others are kept", failures))


def _outcome(epochs: Sequence[dict[str, Any]]) -> str:
    error = epochs[-1]["test_error"]
    return "no error measured" if error is None else f"test error {error:.2%}"


def _rows(asked: Sequence[Job], folder: Path) -> list[dict[str, Any]]:
    """One row for each epoch of each training, and one for a training that broke off."""
    rows: list[dict[str, Any]] = []
    for job in asked:
        result = read_json(folder / job.file)
        own = {
            "row": Named.parse(job.row).label,
            "seed": job.seed,
            "batch_per_tick": job.batch_per_tick,
            "source": result["source"],
        }
        rows += [own | epoch | {"failure": None} for epoch in result["epochs"]]
        if result["failure"]:
            broken = {"epoch": len(result["epochs"]) + 1, "failure": result["failure"]}
            rows.append(own | broken)
    return rows
