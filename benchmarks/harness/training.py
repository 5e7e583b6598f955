"""One training of a comparison of accuracies: a value that a process of its own carries out.

Run as ``python -m benchmarks.harness.training JOB FOLDER NICE``, with JOB the fields of a `Job`
as JSON and FOLDER that of the data (empty for data sets without files); prints the result as JSON.
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
from hocket.data import Data
from hocket.data.batches import Batches
from hocket.engine.async_clock import StageTiming
from hocket.engine.event import Event, Watcher
from hocket.errors import NonFiniteError
from hocket.options import Named
from hocket.runs.build import build_optimizer, parse_method
from hocket.runs.config import RunConfig
from hocket.runs.environment import source_digest
from hocket.stage.stage import Stage
from hocket.training.metrics import EpochResult, EvaluationResult
from hocket.training.trainer import Trainer
from hocket.transport.codecs import parse_codec


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
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
        optimizer: An optimizer of torch.optim with its options, as `hocket train` takes it.
        milestones: Epochs after which the rate falls to a tenth.
        channels_last: Memory format.
        threads: Of PyTorch.
        codec: How what stages send is written.
        rates: How fast each stage is, where each runs freely; none for equally fast.
        turns: Whether such stages take turns at ``regular`` or ``random`` intervals.
        evaluate: After ``every`` epoch, or only at the ``end``.
        updates: How many make an epoch; as many as one pass over the data needs if None.
    """

    row: str
    seed: int
    network: str
    data: str
    subset: int | None
    stages: int
    epochs: int
    batch: int
    optimizer: str
    milestones: tuple[int, ...]
    channels_last: bool
    threads: int
    codec: str = "none"
    rates: tuple[float, ...] = ()
    turns: StageTiming = "regular"
    evaluate: Literal["every", "end"] = "every"
    updates: int | None = None

    @property
    def file(self) -> str:
        """Name of the file that its result is kept in."""
        codec = [Named.parse(self.codec).slug] if self.codec != "none" else []
        rates = ["rates", *(f"{rate:g}" for rate in self.rates)] if self.rates else []
        words = [Named.parse(self.row).slug, f"k{self.stages}", *codec, *rates]
        words.append(f"seed{self.seed}")
        return f"{'-'.join(words)}.json"

    @property
    def accumulate(self) -> int:
        """Batches of an update."""
        return parse_method(self.row).accumulate

    @property
    def batch_per_tick(self) -> int:
        """Samples that enter in one tick."""
        return self.batch // self.accumulate


def run_job(job: TrainingJob, data_dir: Path | None) -> dict[str, Any]:
    """Carry a job out in this process.

    A training whose loss or gradient became infinite is a result too: it has the epochs up to
    there, and the reason under ``failure``.

    Returns:
        ``job`` (its fields), ``source`` (digest of the code), ``epochs`` (one mapping each,
        see `_measured`), ``losses`` (of each batch at the last stage, in turn), ``parameters``
        (how many), ``stages`` (see `_sent`) and ``failure``.
    """
    chosen = {} if job.subset is None else {"subset": job.subset}
    data = datasets.load(
        job.data, data_dir=data_dir, batch_size=job.batch_per_tick, seed=job.seed, **chosen
    )
    losses: list[float] = []

    def watch(event: Event, stage: Stage) -> None:
        loss = event.report.loss
        if event.action.kind == "B" and event.action.stage == job.stages - 1:
            assert loss is not None, "the last stage has the loss"
            losses.append(loss)

    trainer = build_trainer(job, data, watch)
    epochs: list[dict[str, Any]] = []
    parent = os.getppid()

    def keep(epoch: EpochResult) -> None:
        epochs.append(_measured(epoch))
        if os.getppid() != parent:
            sys.exit("the process that asked for this training is gone")

    failure = None
    source = source_digest()
    tested = data.test if job.evaluate == "every" else None
    try:
        trainer.fit(
            _epoch_of(job, data), tested, epochs=job.epochs, on_epoch=keep, progress=False
        )
        if tested is None:
            epochs[-1] |= _scored(trainer.evaluate(data.test))
    except NonFiniteError as error:
        failure = str(error)
    return {
        "job": dataclasses.asdict(job),
        "source": source,
        "epochs": epochs,
        "losses": losses,
        "parameters": sum(weight.numel() for weight in trainer.network.parameters()),
        "stages": [_sent(stage) for stage in trainer.stages],
        "failure": failure,
    }


def build_trainer(job: TrainingJob, data: Data, *watchers: Watcher) -> Trainer:
    """A trainer whose network starts from the same weights in every row of a seed."""
    torch.manual_seed(job.seed)
    asked = Named.parse(job.network)
    network = zoo.create_fitted(asked.name, data.shape, data.classes, **asked.options)
    return Trainer(
        network,
        stages=paper_cut(job.network, job.stages),
        method=parse_method(job.row),
        optimizer=build_optimizer(RunConfig(optimizer=job.optimizer)),
        scheduler=lambda optimizer: optim.lr_scheduler.MultiStepLR(
            optimizer, list(job.milestones)
        ),
        seed=job.seed,
        channels_last=job.channels_last,
        codec=parse_codec(job.codec),
        stage_speeds=job.rates or None,
        stage_timing=job.turns,
        watchers=watchers,
    )


def _epoch_of(job: TrainingJob, data: Data) -> Iterable[tuple[Tensor, Tensor]]:
    """The batches of an epoch; the data are gone through as often as that takes."""
    if job.updates is None:
        return data.train
    return _Several(data.train, job.updates * job.accumulate)


class _Several:
    """So many batches of some that are served anew whenever they are through."""

    def __init__(self, batches: Batches, count: int) -> None:
        self._batches = batches
        self._count = count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return islice(chain.from_iterable(repeat(self._batches)), self._count)


def _measured(epoch: EpochResult) -> dict[str, Any]:
    """An epoch: losses are means, errors fractions, the time that of training alone."""
    return {
        "epoch": epoch.number + 1,
        "train_loss": _finite(epoch.loss),
        **_scored(epoch.evaluation),
        "time_s": round(epoch.seconds, 3),
        "samples": epoch.samples,
        "staleness": list(epoch.staleness),
    }


def _scored(score: EvaluationResult | None) -> dict[str, float | None]:
    return {
        "test_loss": _finite(score.loss) if score else None,
        "test_error": score.error if score else None,
    }


def _sent(stage: Stage) -> dict[str, Any]:
    """What a stage sent ahead, and what became of what came for it."""
    return {
        "ledger": dataclasses.asdict(stage.send_stats),
        "uses": dataclasses.asdict(stage.receive_stats)
        if stage.receive_stats is not None
        else None,
    }


def _finite(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None


def main(job_json: str, folder: str, nice: str) -> None:
    """What the process does: make way for others, train, print."""
    os.nice(max(0, int(nice) - os.nice(0)))
    fields = json.loads(job_json)
    several = {name: tuple(fields[name]) for name in ("milestones", "rates")}
    job = TrainingJob(**(fields | several))
    torch.set_num_threads(job.threads)
    result = run_job(job, Path(folder) if folder else None)
    print(json.dumps(result, allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
