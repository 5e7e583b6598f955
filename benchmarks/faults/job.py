"""The training that faults happen to: small, with dropout, the same each time it is begun.

Run as ``python -m benchmarks.faults.job JOB FOLDER``, with JOB as `Job.words` gives it, it is
what torchrun starts.
"""

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.faults.fault import Fault, format_schedule, schedule
from benchmarks.faults.injector import Injector
from benchmarks.faults.promise import PROMISES
from hocket.checkpoint import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.runs.build import parse_method
from hocket.training.trainer import Trainer

FEATURES = 6
CLASSES = 3
EVERY = 3
"""Ticks from one checkpoint to the next."""
SHORT_S, LONG_S = 3.0, 60.0


@dataclass(frozen=True)
class FaultyJob:
    """One training, and what happens to it.

    Attributes:
        method: As `hocket train` takes it.
        stages: K.
        faults: What happens.
        epochs: How many.
        batches: Of each epoch.
    """

    method: str
    stages: int
    faults: tuple[Fault, ...] = ()
    epochs: int = 2
    batches: int = 8

    @property
    def timeout_s(self) -> float:
        """Short where it is needed, long where a busy machine must not be taken for a hang."""
        waits = any(PROMISES[fault.kind].waits for fault in self.faults)
        return SHORT_S if waits else LONG_S

    @property
    def words(self) -> str:
        """As text."""
        return json.dumps(asdict(self) | {"faults": format_schedule(self.faults)})

    @staticmethod
    def parse(text: str) -> "FaultyJob":
        """What was written so."""
        values = json.loads(text)
        faults = schedule(values.pop("faults")) if values["faults"] else ()
        return FaultyJob(**(values | {"faults": faults}))


def train_with_faults(job: FaultyJob, folder: Path | None) -> str:
    """Train, from the last checkpoint in a folder if there is one; a digest of the weights."""
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
    make = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, FEATURES, generator=make), torch.randint(CLASSES, (4,), generator=make))
        for _ in range(count)
    ]


def work(job: FaultyJob, folder: Path, attempt: int) -> int:
    """What each process does; what came of it is left in files of the folder.

    ``pid-*``: that it was there; ``span-ATTEMPT-RANK.json``: from which tick to which, unless
    it was killed; ``digest-RANK``: the weights it ended with.
    """
    rank = int(os.environ["RANK"])
    (folder / f"pid-{os.getpid()}").touch()
    injector = Injector(job.faults, folder, rank)
    try:
        with injector.at_work():
            digest = train_with_faults(job, folder)
    except KeyboardInterrupt as stopped:
        return 128 + int(stopped.args[0])
    finally:
        (folder / f"span-{attempt}-{rank}.json").write_text(json.dumps(injector.span))
    (folder / f"digest-{rank}").write_text(digest)
    return 0


if __name__ == "__main__":
    number = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    sys.exit(work(FaultyJob.parse(sys.argv[1]), Path(sys.argv[2]), number))
