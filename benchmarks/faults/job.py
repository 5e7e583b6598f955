"""The training to which faults happen: small, with dropout, and deterministic."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from benchmarks.faults.expectations import EXPECTATIONS
from benchmarks.faults.fault import Fault
from benchmarks.faults.injector import SLOW_S, Injector
from hocket.checkpoint import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.distributed.failures.phases import TimeLimits
from hocket.distributed.launching.launch import launch
from hocket.engine.event import Watcher
from hocket.methods import parse_method
from hocket.runs.metrics_log import MetricsLog
from hocket.training.trainer import Trainer

FEATURES = 6
CLASSES = 3
EPOCHS, BATCHES = 2, 8
"""Epochs of a job, and batches of each of them."""
EVERY = 3
"""Ticks from one checkpoint to the next."""
SHORT_S, LONG_S = 3.0, 60.0
OUTLASTED_S = SLOW_S * 2 / 3
"""Time-out that a slow phase exceeds, in seconds."""
LONG = TimeLimits(LONG_S, LONG_S)
GRACE_S = 10.0

Batch: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class FaultyJob:
    """One training and its faults.

    Attributes:
        method: The method, as `hocket train` takes it.
        stages: Number of stages K.
        faults: The faults.
    """

    method: str
    stages: int
    faults: tuple[Fault, ...] = ()

    def time_limits(self, pending: Sequence[Fault]) -> TimeLimits:
        """Return limits that are short only if a fault that has yet to happen needs that.

        With others a busy machine causes no false alarm.
        """
        expected = [EXPECTATIONS[fault.kind] for fault in pending]
        waits = any(one.needs_timeout for one in expected)
        timeout_s = SHORT_S if waits else LONG_S
        if any(one.outlasts_timeout for one in expected):
            timeout_s = OUTLASTED_S
        # A fault may happen to the first action, whose limit is the longer one.
        return TimeLimits(timeout_s, 2 * SHORT_S if waits else LONG_S)


def train_with_faults(
    job: FaultyJob,
    folder: Path | None,
    limits: TimeLimits = LONG,
    *,
    load: Callable[[Sequence[Batch]], Iterable[Batch]] = list,
    watchers: Sequence[Watcher] = (),
    progress: bool = False,
) -> str:
    """Train, from the last checkpoint if there is one; return a digest of the weights.

    Without a folder no checkpoints are written. ``load`` makes a loader of the batches.
    """
    torch.manual_seed(0)
    modules = [
        nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Dropout(0.2))
        for _ in range(job.stages)
    ]
    modules[-1].append(nn.Linear(FEATURES, CLASSES))
    trainer = Trainer(
        modules,
        method=parse_method(job.method),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
        timeout_s=limits.timeout_s,
        slow_timeout_s=limits.slow_timeout_s,
        watchers=watchers,
        resumable=True,
    )
    checkpoints = None
    if folder is not None:
        place = folder / "checkpoints"
        checkpoints = Checkpoints(place, every=EVERY)
        if newest_first(place):
            trainer.resume(place)
    trainer.fit(load(_batches()), epochs=EPOCHS, progress=progress, checkpoints=checkpoints)
    states = (value for module in modules for value in module.state_dict().values())
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in states)).hexdigest()


def _batches() -> list[Batch]:
    rng = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, FEATURES, generator=rng), torch.randint(CLASSES, (4,), generator=rng))
        for _ in range(BATCHES)
    ]


def launch_job(job: FaultyJob, folder: Path, attempt: int, limits: TimeLimits) -> int:
    """Launch the processes of a job, after ``attempt`` launches; return the exit code."""
    arguments = (job, folder, attempt, limits)
    return launch(run_faulty_job, *arguments, processes=job.stages, threads=1, grace_s=GRACE_S)


def run_faulty_job(job: FaultyJob, folder: Path, attempt: int, limits: TimeLimits) -> int:
    """Run one process of a job, and write its results into the folder.

    The files are ``pid-*`` for every process; ``span-ATTEMPT-RANK.json`` with its first and
    last tick, unless it was killed; ``metrics.stageRANK.jsonl``; and ``digest-RANK`` of its
    final weights. ATTEMPT is the number of earlier launches.
    """
    rank = int(os.environ["RANK"])
    (folder / f"pid-{os.getpid()}").touch()
    injector = Injector(job.faults, folder, rank)
    try:
        with (
            injector.active(),
            MetricsLog(folder, 1, tensorboard=False, process=f"stage{rank}") as log,
        ):
            digest = train_with_faults(
                job,
                folder,
                limits,
                load=injector.loader,
                watchers=[log.log_event],
                progress=True,
            )
    except KeyboardInterrupt as stopped:
        return 128 + int(stopped.args[0])
    finally:
        (folder / f"span-{attempt}-{rank}.json").write_text(json.dumps(injector.span))
    (folder / f"digest-{rank}").write_text(digest)
    return 0
