"""One training of a measurement: a value, and its run in a process of its own.

Run as ``python -m benchmarks.harness.training JOB FOLDER NICE``, with JOB the fields of a
`TrainingJob` as JSON and FOLDER that of the data (empty for data sets without files); prints
the result as JSON.
"""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, optim

from benchmarks.harness.cuts import paper_cut
from hocket import data as datasets
from hocket import zoo
from hocket.codecs import parse_codec
from hocket.data import Data
from hocket.data.batches import Batches
from hocket.engine.event import Event, Watcher
from hocket.errors import NonFiniteError
from hocket.methods import parse_method
from hocket.methods.simulated.stage_speeds import StageTiming
from hocket.options import Named
from hocket.runs.build import build_optimizer_factory
from hocket.runs.config import RunConfig
from hocket.runs.environment import source_digest
from hocket.stage.stage import Stage
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """All settings that influence the result of one training.

    Attributes:
        row: The method, as `parse_method` reads it.
        seed: Seed of initial weights, order and augmentation.
        network: Name in the zoo.
        data: Name of the data set.
        subset: Number of images to train on, for data sets that can be limited; None for all.
        stages: Number of stages K, cut as in the paper that used the network, else balanced.
        epochs: Number of epochs.
        batch: Samples per update; a method that accumulates M gradients gets batch / M a tick.
        optimizer: An optimizer of torch.optim with its options, as `hocket train` takes it.
        milestones: Epochs after which the learning rate falls to a tenth.
        channels_last: Use the channels-last memory format.
        threads: PyTorch threads.
        codec: Encoding of what stages send.
        stage_speeds: Relative speeds of free-running stages; empty if they are equal.
        stage_timing: Intervals between the ticks of such stages, ``regular`` or ``random``.
        evaluate: After ``every`` epoch, or only at the ``end``.
        updates: Updates of an epoch; None for one pass over the data.
    """

    row: str
    seed: int
    network: str
    data: str
    stages: int
    epochs: int
    batch: int
    optimizer: str
    threads: int
    subset: int | None = None
    milestones: tuple[int, ...] = ()
    channels_last: bool = True
    codec: str = "none"
    stage_speeds: tuple[float, ...] = ()
    stage_timing: StageTiming = "regular"
    evaluate: Literal["every", "end"] = "every"
    updates: int | None = None

    @property
    def file(self) -> str:
        """Name of the file of its result."""
        codec = [Named.parse(self.codec).slug] if self.codec != "none" else []
        speeds = [f"{speed:g}" for speed in self.stage_speeds]
        speeds = ["speeds", *speeds] if speeds else []
        words = [Named.parse(self.row).slug, f"k{self.stages}", *codec, *speeds]
        words.append(f"seed{self.seed}")
        return f"{'-'.join(words)}.json"

    @property
    def accumulate(self) -> int:
        """Number of batches in an update."""
        return parse_method(self.row).accumulate

    @property
    def batch_per_tick(self) -> int:
        """Number of samples in a batch, one of which enters in each tick."""
        return self.batch // self.accumulate


def run_job(job: TrainingJob, data_dir: Path | None) -> dict[str, Any]:
    """Run a job in this process.

    A training whose loss or gradient became infinite has a result too: the epochs up to there,
    and the reason under ``failure``.

    Returns:
        ``job`` (its fields), ``source`` (digest of the code), ``epochs`` (a mapping for each,
        see `_epoch_row`), ``losses`` (of each batch, in order), ``parameters`` (their number),
        ``stages`` (see `_stage_statistics`) and ``failure``.
    """
    options = {} if job.subset is None else {"subset": job.subset}
    data = datasets.load(
        job.data, data_dir=data_dir, batch_size=job.batch_per_tick, seed=job.seed, **options
    )
    losses: list[float] = []

    def record_loss(event: Event, stage: Stage) -> None:
        loss = event.report.loss
        if event.action.kind == "B" and event.action.stage == job.stages - 1:
            assert loss is not None, "the last stage has the loss"
            losses.append(loss)

    trainer = build_job_trainer(job, data, record_loss)
    epochs: list[dict[str, Any]] = []
    parent = os.getppid()

    def record_epoch(epoch: EpochResult) -> None:
        epochs.append(_epoch_row(epoch))
        if os.getppid() != parent:
            sys.exit("the process that started this training is gone")

    failure = None
    source = source_digest()
    tested = data.test if job.evaluate == "every" else None
    try:
        trainer.fit(
            _epoch_batches(job, data),
            tested,
            epochs=job.epochs,
            on_epoch=record_epoch,
            progress=False,
        )
        if tested is None:
            epochs[-1] |= _evaluation_row(trainer.evaluate(data.test))
    except NonFiniteError as error:
        failure = str(error)
    return {
        "job": dataclasses.asdict(job),
        "source": source,
        "epochs": epochs,
        "losses": losses,
        "parameters": sum(weight.numel() for weight in trainer.network.parameters()),
        "stages": [_stage_statistics(stage) for stage in trainer.stages],
        "failure": failure,
    }


def build_job_trainer(job: TrainingJob, data: Data, *watchers: Watcher) -> Trainer:
    """Build a trainer; its network starts from the same weights in every row of a seed."""
    torch.manual_seed(job.seed)
    parsed = Named.parse(job.network)
    network = zoo.create_fitted(parsed.name, data.shape, data.classes, **parsed.options)
    return Trainer(
        network,
        stages=paper_cut(job.network, job.stages),
        method=parse_method(job.row),
        optimizer=build_optimizer_factory(RunConfig(optimizer=job.optimizer)),
        scheduler=lambda optimizer: optim.lr_scheduler.MultiStepLR(
            optimizer, list(job.milestones)
        ),
        seed=job.seed,
        channels_last=job.channels_last,
        codec=parse_codec(job.codec),
        stage_speeds=job.stage_speeds or None,
        stage_timing=job.stage_timing,
        watchers=watchers,
    )


def _epoch_batches(job: TrainingJob, data: Data) -> Iterable[tuple[Tensor, Tensor]]:
    """Return the batches of an epoch, which may be several passes over the data."""
    if job.updates is None:
        return data.train
    return _LimitedBatches(data.train, job.updates * job.accumulate)


class _LimitedBatches:
    """A fixed number of batches from a loader that is restarted whenever it ends."""

    def __init__(self, batches: Batches, count: int) -> None:
        self._batches = batches
        self._count = count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return islice(chain.from_iterable(repeat(self._batches)), self._count)


def _epoch_row(epoch: EpochResult) -> dict[str, Any]:
    """Return an epoch as JSON: losses are means, errors fractions, time that of training."""
    return {
        "epoch": epoch.number + 1,
        "train_loss": _finite_or_none(epoch.loss),
        **_evaluation_row(epoch.evaluation),
        "time_s": round(epoch.seconds, 3),
        "samples": epoch.samples,
        "staleness": list(epoch.staleness),
    }


def _evaluation_row(evaluation: EvaluationResult | None) -> dict[str, float | None]:
    return {
        "test_loss": _finite_or_none(evaluation.loss) if evaluation else None,
        "test_error": evaluation.error if evaluation else None,
    }


def _stage_statistics(stage: Stage) -> dict[str, Any]:
    """Return what a stage sent, and what happened to the packets that it received."""
    return {
        "send_stats": dataclasses.asdict(stage.send_stats),
        "receive_stats": dataclasses.asdict(stage.receive_stats)
        if stage.receive_stats is not None
        else None,
    }


def _finite_or_none(value: float) -> float | None:
    """Return a number, or None if it is not finite, as JSON has no NaN."""
    return value if math.isfinite(value) else None


def main(job_json: str, folder: str, nice: str) -> None:
    """Lower the priority of this process, train, and print the result.

    Args:
        job_json: Fields of the `TrainingJob`, as JSON.
        folder: Folder of the data; may be empty.
        nice: Niceness of this process, 0 to 19.
    """
    os.nice(max(0, int(nice) - os.nice(0)))
    fields = json.loads(job_json)
    tuples = {name: tuple(fields[name]) for name in ("milestones", "stage_speeds")}
    job = TrainingJob(**(fields | tuples))
    torch.set_num_threads(job.threads)
    result = run_job(job, Path(folder) if folder else None)
    print(json.dumps(result, allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
