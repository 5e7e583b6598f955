"""One training of a comparison of accuracies: a value that a process of its own carries out.

Run as ``python -m hocket.bench.training JOB FOLDER NICE``, with JOB the fields of a `Job` as
JSON and FOLDER that of the data (empty for data sets without files); prints the result as JSON.
"""

import dataclasses
import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import optim

from hocket import data as datasets
from hocket import zoo
from hocket.bench.cuts import cut
from hocket.data import Data
from hocket.environment import source_digest
from hocket.errors import NonFiniteError
from hocket.history import Epoch
from hocket.named import Named
from hocket.parts import method_of
from hocket.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides the numbers of one training.

    Attributes:
        row: The method, as `method_of` reads it.
        seed: Decides initial weights, order and augmentation.
        network: Name in the zoo.
        data: Name of the data set.
        subset: Train on so many images only, for data sets that can; None for all.
        stages: K, cut as the paper did where there is one, else balanced.
        epochs: How many.
        batch: Samples per update; a method that accumulates M gradients gets batch / M a tick.
        rate: Learning rate.
        momentum: Of SGD.
        weight_decay: Of SGD.
        milestones: Epochs after which the rate falls to a tenth.
        channels_last: Memory format.
        threads: Of PyTorch.
    """

    row: str
    seed: int
    network: str
    data: str
    subset: int | None
    stages: int
    epochs: int
    batch: int
    rate: float
    momentum: float
    weight_decay: float
    milestones: tuple[int, ...]
    channels_last: bool
    threads: int

    @property
    def file(self) -> str:
        """Name of the file that its result is kept in."""
        return f"{Named.parse(self.row).slug}-seed{self.seed}.json"

    @property
    def batch_per_tick(self) -> int:
        """Samples that enter in one tick."""
        return self.batch // method_of(self.row).accumulate


def train(job: Job, data_dir: Path | None) -> dict[str, Any]:
    """Carry a job out in this process.

    A training whose loss or gradient became infinite is a result too: it has the epochs up to
    there, and the reason under ``failure``.

    Returns:
        ``job`` (its fields), ``source`` (digest of the code), ``epochs`` (one mapping each,
        see `_measured`) and ``failure``.
    """
    chosen = {} if job.subset is None else {"subset": job.subset}
    data = datasets.load(
        job.data, data_dir=data_dir, batch_size=job.batch_per_tick, seed=job.seed, **chosen
    )
    trainer = build_trainer(job, data)
    epochs: list[dict[str, Any]] = []
    parent = os.getppid()

    def keep(epoch: Epoch) -> None:
        epochs.append(_measured(epoch))
        if os.getppid() != parent:
            sys.exit("the process that asked for this training is gone")

    failure = None
    source = source_digest()
    try:
        trainer.fit(data.train, data.test, epochs=job.epochs, on_epoch=keep, progress=False)
    except NonFiniteError as error:
        failure = str(error)
    return {
        "job": dataclasses.asdict(job) | {"milestones": list(job.milestones)},
        "source": source,
        "epochs": epochs,
        "failure": failure,
    }


def build_trainer(job: Job, data: Data) -> Trainer:
    """A trainer whose network starts from the same weights in every row of a seed."""
    torch.manual_seed(job.seed)
    network = zoo.fitted(job.network, data.shape, data.classes)
    return Trainer(
        network,
        stages=cut(job.network, job.stages),
        method=method_of(job.row),
        optimizer=lambda parameters: optim.SGD(
            parameters, lr=job.rate, momentum=job.momentum, weight_decay=job.weight_decay
        ),
        scheduler=lambda optimizer: optim.lr_scheduler.MultiStepLR(
            optimizer, list(job.milestones)
        ),
        seed=job.seed,
        channels_last=job.channels_last,
    )


def _measured(epoch: Epoch) -> dict[str, Any]:
    """An epoch: losses are means, errors fractions, the time that of training alone."""
    score = epoch.score
    return {
        "epoch": epoch.number + 1,
        "train_loss": _finite(epoch.loss),
        "test_loss": _finite(score.loss) if score else None,
        "test_error": score.error if score else None,
        "time_s": round(epoch.seconds, 3),
        "staleness": list(epoch.staleness),
    }


def _finite(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None


def main(job_json: str, folder: str, nice: str) -> None:
    """What the process does: make way for others, train, print."""
    os.nice(max(0, int(nice) - os.nice(0)))
    fields = json.loads(job_json)
    job = Job(**(fields | {"milestones": tuple(fields["milestones"])}))
    torch.set_num_threads(job.threads)
    result = train(job, Path(folder) if folder else None)
    print(json.dumps(result, allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
