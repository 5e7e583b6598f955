"""Trainings that a measurement is made of, each in a process of its own; none is lost."""

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness.process import in_own_process
from benchmarks.harness.record import Record, read_json, write_record_json
from benchmarks.harness.training import TrainingJob
from hocket.errors import HocketError, OptionError, listed


def fields_of(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """What a measurement's options say of every job; if nothing else, its rate stays as it is.

    >>> fields_of({"rate": 0.1, "momentum": 0.9, "weight_decay": 5e-4})["optimizer"]
    'SGD:lr=0.1,momentum=0.9,weight_decay=0.0005'
    """
    names = {field.name for field in dataclasses.fields(TrainingJob)}
    found = {name: value for name, value in chosen.items() if name in names}
    if "rate" in chosen:
        words = "SGD:lr={rate},momentum={momentum},weight_decay={weight_decay}"
        found["optimizer"] = words.format(**chosen)
    return {"milestones": (), "channels_last": True} | found


def check_batch(asked: Sequence[TrainingJob]) -> list[str]:
    """A line for each method that the samples of an update cannot be shared out for."""
    return [
        f"row {row!r} accumulates {accumulate} gradients; give a batch that is a multiple of "
        f"it instead of {asked[0].batch}"
        for row, accumulate in {job.row: job.accumulate for job in asked}.items()
        if asked[0].batch % accumulate
    ]


def carry_out(
    begun: Record,
    asked: Sequence[TrainingJob],
    folder: Path,
    data_dir: Path | None,
    jobs: int,
    nice: int,
) -> tuple[Record, list[dict[str, Any]]]:
    """Run what is missing of the jobs, and save each as it ends.

    Args:
        begun: The certificate of this call.
        asked: The jobs.
        folder: Where their results are, of earlier calls too.
        data_dir: Folder of the data.
        jobs: How many at a time.
        nice: How far each steps back behind other processes, 0 to 19.

    Returns:
        The certificate of the first call, and a result for each job.

    Raises:
        OptionError: There is nothing to do, something twice, or results of other settings.
        HocketError: A training failed; those that ended are kept.
    """
    problems = []
    if not asked:
        problems.append("there is nothing to train; give at least one of each")
    if jobs < 1:
        problems.append(f"jobs is {jobs}; give 1 or more")
    if len({job.file for job in asked}) < len(asked):
        problems.append("something is listed twice; list each once")
    if problems:
        raise OptionError(listed("cannot measure that", problems))
    record = _certificate(begun, folder)
    missing = [job for job in asked if not _is_done(job, folder)]
    _run(missing, folder, data_dir, jobs, nice, done=len(asked) - len(missing))
    return record, [read_json(folder / job.file) for job in asked]


def _certificate(begun: Record, folder: Path) -> Record:
    """The certificate of the first call into this folder, with what this call asks for.

    Rows name the code that they were measured with, so a mixture would show.
    """
    path = folder / "begun.json"
    if path.is_file():
        first = Record(**read_json(path))
        return dataclasses.replace(first, command=begun.command, settings=begun.settings)
    write_record_json(path, dataclasses.asdict(begun))
    return begun


def _is_done(job: TrainingJob, folder: Path) -> bool:
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


def _run(
    missing: Sequence[TrainingJob],
    folder: Path,
    data_dir: Path | None,
    jobs: int,
    nice: int,
    done: int,
) -> None:
    """Run jobs, some at a time, and save each as it ends."""
    failures: list[str] = []
    finished = done
    total = done + len(missing)

    def run(job: TrainingJob) -> None:
        nonlocal finished
        start = time.perf_counter()
        words = [json.dumps(dataclasses.asdict(job)), str(data_dir or ""), str(nice)]
        try:
            printed = in_own_process("benchmarks.harness.training", *words, threads=job.threads)
        except HocketError as error:
            failures.append(f"{job.file}: {error}")
            outcome = "failed"
        else:
            result = json.loads(printed)
            write_record_json(folder / job.file, result)
            outcome = result["failure"] or _outcome(result["epochs"])
        finished += 1
        time_s = time.perf_counter() - start
        name = job.file.removesuffix(".json")
        line = f"[{finished}/{total}] {name}: {outcome}, {time_s:.0f} s"
        print(line, file=sys.stderr, flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, missing))
    if failures:
        raise HocketError(listed("these trainings failed, the others are kept", failures))


def _outcome(epochs: Sequence[dict[str, Any]]) -> str:
    error = epochs[-1]["test_error"]
    return "no error measured" if error is None else f"test error {error:.2%}"
