"""The cost of a killed stage: repeated batches and lost time."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TextIO

from cyclopts import Parameter

from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings
from hocket.checkpoint import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.distributed.folder import identity
from hocket.distributed.folder.restart import RestartBudget, retry_after_loss
from hocket.distributed.launching.launch import launch
from hocket.engine.event import Event, Watcher
from hocket.errors import HocketError
from hocket.methods import parse_method
from hocket.runs.build import (
    build_optimizer_factory,
    load_data,
    network_builder,
    require_data,
)
from hocket.runs.config import RunConfig
from hocket.stage import Stage
from hocket.training.trainer import Trainer


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class KillRecoverySettings:
    """Settings of the measurement of kills.

    Attributes:
        out: Folder of the record.
        methods: The methods.
        network: Name in the zoo, with options.
        data: Data set that needs no files, with options.
        stages: Number of stages K, balanced.
        victims: Stages that are killed, one in each training.
        epochs: Epochs that each stage learns.
        killed_at: The batch after whose backward a stage is killed.
        every: Ticks from one checkpoint to the next; of free-running stages, ticks of a stage.
        seeds: Seeds.
        batch: Samples in a batch.
        rate: Learning rate of SGD.
        momentum: Momentum of SGD.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/kill-recovery")
    methods: Sequence[str] = ("dgl", "dgl-async")
    network: str = "mlp:hidden=[256,256,256,256,256]"
    data: str = "digits"
    stages: int = 3
    victims: Sequence[int] = (0, 1, 2)
    epochs: int = 20
    killed_at: int = 250
    every: int = 20
    seeds: Sequence[int] = (0, 1)
    batch: int = 64
    rate: float = 0.05
    momentum: float = 0.9

    def __post_init__(self) -> None:
        for method in self.methods:
            parse_method(method)
        check_settings(
            "cannot measure kills",
            self,
            at_least={1: ("epochs", "killed_at", "every", "batch"), 2: ("stages",)},
            problems=[
                f"a victim is {victim}; the {self.stages} stages are 0 to {self.stages - 1}"
                for victim in self.victims
                if not 0 <= victim < self.stages
            ],
        )
        require_data(config := self.config(seed=0))
        network_builder(config)

    def config(self, seed: int) -> RunConfig:
        """Return network, data and optimizer of a training, as a run has them."""
        return RunConfig(
            network=self.network,
            data=self.data,
            batch_size=self.batch,
            optimizer=f"SGD:lr={self.rate},momentum={self.momentum}",
            seed=seed,
        )


class KilledTraining(NamedTuple):
    """One training of the measurement, and the stage that is killed in it, if any."""

    settings: KillRecoverySettings
    method: str
    seed: int
    victim: int | None


class Learned(NamedTuple):
    """A batch from which a stage has learned, and the time of its backward since the epoch."""

    batch: int
    time_s: float


DEFAULTS = KillRecoverySettings()


def measure_kill_recovery(settings: KillRecoverySettings = DEFAULTS) -> None:
    """Train with a process for each stage, and kill each of them once, by SIGKILL.

    If stages run freely, the killed one is restarted alone from its own last checkpoint; in
    lockstep, or before the first one, all are. In further trainings no stage is killed.

    Raises:
        HocketError: A training failed.
    """
    record = Record.from_settings("kill-recovery", settings)
    chosen = product(settings.methods, settings.seeds, (None, *settings.victims))
    rows = []
    for method, seed, stage in chosen:
        training = KilledTraining(settings, method, seed, stage)
        row = _run_training(training)
        rows.append(row)
        victim = "no stage" if stage is None else f"stage {stage}"
        line = f"{method}, seed {seed}, {victim} killed"
        print(f"{line}: {row['test_error']:.2%} wrong", file=sys.stderr, flush=True)
    record.with_rows(rows).write(settings.out)


def _run_training(training: KilledTraining) -> dict[str, Any]:
    """Run a training and return its row.

    Raises:
        HocketError: A process of the training failed.
    """
    free = parse_method(training.method).free_running
    with TemporaryDirectory() as name:
        # Train; a killed stage is restarted alone, or all stages are.
        alone = RestartBudget(1) if free else None

        def start(again: bool) -> int:
            return launch(
                _train_stage,
                name,
                training,
                processes=training.settings.stages,
                threads=1,
                rejoin_restarts=alone,
            )

        together = 0 if training.victim is None else 1
        if retry_after_loss(start, RestartBudget(together)):
            raise HocketError(
                f"a process of {training.method!r} failed; its output is above this message"
            )
        # Read what each stage has left.
        folder = Path(name)
        ranks = range(training.settings.stages)
        results = [json.loads((folder / f"{rank}.json").read_text()) for rank in ranks]
        learned = [_read_learned(folder / f"{rank}.learned") for rank in ranks]
        mark = folder / "killed"
        killed_s = float(mark.read_text()) if mark.exists() else None
    # Build the row, with the cost of the kill.
    begin_s = min(batches[0].time_s for batches in learned)
    end_s = max(batches[-1].time_s for batches in learned)
    row = {
        "row": training.method,
        "seed": training.seed,
        "victim": training.victim,
        "test_error": results[0]["test_error"],
        "seconds": end_s - begin_s,
        "packets_lost": sum(result["lost"] for result in results),
        "packets_orphaned": sum(result["orphaned"] for result in results),
    }
    if training.victim is None:
        return row | dict(turns_again=0, others_again=0, away_s=None, others_learned=None)
    if killed_s is None:
        raise HocketError(
            f"stage {training.victim} was not killed: it learned from no more batches than "
            "--killed-at says; give more --epochs, or a smaller number"
        )
    return row | _measure_cost(learned, training.victim, killed_s)


def _measure_cost(
    learned: Sequence[Sequence[Learned]], victim: int, killed_s: float
) -> dict[str, Any]:
    """Return the repeated batches, the time away, and the batches of others in that time.

    What a stage has learned includes the batches of all its incarnations.
    """
    repeated = [len(batches) - len({one.batch for one in batches}) for batches in learned]
    back_s = next(one.time_s for one in learned[victim] if one.time_s > killed_s)
    others = [batches for stage, batches in enumerate(learned) if stage != victim]
    meanwhile = [sum(killed_s < one.time_s < back_s for one in batches) for batches in others]
    return {
        "turns_again": repeated[victim],
        "others_again": sum(repeated) - repeated[victim],
        "away_s": back_s - killed_s,
        "others_learned": sum(meanwhile),
    }


def _read_learned(file: Path) -> list[Learned]:
    rows = (line.split() for line in file.read_text().splitlines())
    return [Learned(int(number), float(time_s)) for number, time_s in rows]


def _train_stage(folder_name: str, training: KilledTraining) -> int:
    """Run the process of one stage: train, and write the time of each batch and the result."""
    folder, rank = Path(folder_name), int(os.environ["RANK"])
    with (folder / f"{rank}.learned").open("a", buffering=1) as notes:
        result = _train(training, folder, _build_watcher(training, rank, folder, notes))
    (folder / f"{rank}.json").write_text(json.dumps(result))
    return 0


def _train(training: KilledTraining, folder: Path, watcher: Watcher) -> dict[str, Any]:
    """Train, from the last checkpoint if there is one; return errors and packet counts."""
    kept, settings = folder / "checkpoints", training.settings
    config = settings.config(training.seed)
    loaded = load_data(config)
    trainer = Trainer(
        network_builder(config)(loaded),
        stages=settings.stages,
        method=parse_method(training.method),
        optimizer=build_optimizer_factory(config),
        seed=training.seed,
        watchers=[watcher],
        resumable=True,
    )
    if identity.has_rejoined() or newest_first(kept):
        trainer.resume(kept)
    checkpoints = Checkpoints(kept, every=settings.every)
    trainer.fit(loaded.train, epochs=settings.epochs, progress=False, checkpoints=checkpoints)
    stats = trainer.stages[0].receive_stats
    return {
        "test_error": trainer.evaluate(loaded.test).error,
        "lost": stats.lost if stats is not None else 0,
        "orphaned": stats.orphaned if stats is not None else 0,
    }


def _build_watcher(training: KilledTraining, rank: int, folder: Path, notes: TextIO) -> Watcher:
    """Build a watcher that writes the time of each backward, and kills the victim once."""
    mark = folder / "killed"

    def watch(event: Event, stage: Stage) -> None:
        if event.action.kind != "B":
            return
        notes.write(f"{event.action.batch} {time.time()}\n")
        due = (rank, event.action.batch) == (training.victim, training.settings.killed_at)
        if due and not mark.exists():
            mark.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    return watch
