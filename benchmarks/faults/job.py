"""The training to which faults happen: small, with dropout, and deterministic.

``python -m benchmarks.faults.job JOB FOLDER``, with JOB as `FaultyJob.to_json` returns it, is
the program for torchrun.
"""

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.faults.expectations import EXPECTATIONS
from benchmarks.faults.fault import Fault, format_schedule, parse_schedule
from benchmarks.faults.injector import Injector
from hocket.checkpoint import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.methods import parse_method
from hocket.training.trainer import Trainer

FEATURES = 6
CLASSES = 3
EVERY = 3
"""Ticks from one checkpoint to the next."""
SHORT_S, LONG_S = 3.0, 60.0


@dataclass(frozen=True)
class FaultyJob:
    """One training and its faults.

    Attributes:
        method: The method, as `hocket train` takes it.
        stages: Number of stages K.
        faults: The faults.
        epochs: Number of epochs.
        batches: Batches of each epoch.
    """

    method: str
    stages: int
    faults: tuple[Fault, ...] = ()
    epochs: int = 2
    batches: int = 8

    @property
    def timeout_s(self) -> float:
        """Seconds; short if a fault needs it, else so long that a busy machine causes none."""
        waits = any(EXPECTATIONS[fault.kind].needs_timeout for fault in self.faults)
        return SHORT_S if waits else LONG_S

    def to_json(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self) | {"faults": format_schedule(self.faults)})

    @staticmethod
    def from_json(text: str) -> "FaultyJob":
        """Return the job of a text that `to_json` returned."""
        values = json.loads(text)
        faults = parse_schedule(values.pop("faults")) if values["faults"] else ()
        return FaultyJob(**(values | {"faults": faults}))


def train_with_faults(job: FaultyJob, folder: Path | None) -> str:
    """Train, from the last checkpoint if there is one; return a digest of the weights."""
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
        timeout_s=job.timeout_s,
        resumable=True,
    )
    checkpoints = None
    if folder is not None:
        checkpoints = Checkpoints(folder / "checkpoints", every=EVERY)
        if newest_first(checkpoints.folder):
            trainer.resume(checkpoints.folder)
    trainer.fit(
        _batches(job.batches), epochs=job.epochs, progress=False, checkpoints=checkpoints
    )
    states = (value for module in modules for value in module.state_dict().values())
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in states)).hexdigest()


def _batches(count: int) -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, FEATURES, generator=rng), torch.randint(CLASSES, (4,), generator=rng))
        for _ in range(count)
    ]


def run_faulty_job(job: FaultyJob, folder: Path, attempt: int) -> int:
    """Run one process of a job, and write its results into the folder.

    The files are ``pid-*`` for every process; ``span-ATTEMPT-RANK.json`` with its first and
    last tick, unless it was killed; and ``digest-RANK`` of its final weights.

    Args:
        job: The job.
        folder: The folder.
        attempt: Number of earlier launches.
    """
    rank = int(os.environ["RANK"])
    (folder / f"pid-{os.getpid()}").touch()
    injector = Injector(job.faults, folder, rank)
    try:
        with injector.active():
            digest = train_with_faults(job, folder)
    except KeyboardInterrupt as stopped:
        return 128 + int(stopped.args[0])
    finally:
        (folder / f"span-{attempt}-{rank}.json").write_text(json.dumps(injector.span))
    (folder / f"digest-{rank}").write_text(digest)
    return 0


if __name__ == "__main__":
    number = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    sys.exit(run_faulty_job(FaultyJob.from_json(sys.argv[1]), Path(sys.argv[2]), number))
