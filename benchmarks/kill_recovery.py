"""What it costs when one stage is killed: where the others go on, and where all begin again."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.harness.record import Record
from hocket import data as datasets
from hocket import zoo
from hocket.checkpoint import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.distributed import identity
from hocket.distributed.launch import launch
from hocket.distributed.restart import Restarts, retry_after_loss
from hocket.engine.event import Event
from hocket.errors import HocketError, OptionError, listed, too_small
from hocket.options import Named
from hocket.runs.build import parse_method
from hocket.stage import Stage
from hocket.training.trainer import Trainer


def kill_recovery(
    *,
    out: Path = Path("records/rejoin"),
    methods: Sequence[str] = ("dgl", "dgl-async"),
    network: str = "mlp:hidden=[256,256,256,256,256]",
    data: str = "digits",
    stages: int = 3,
    victims: Sequence[int] = (0, 1, 2),
    epochs: int = 20,
    killed_at: int = 250,
    every: int = 20,
    seeds: Sequence[int] = (0, 1),
    batch: int = 64,
    rate: float = 0.05,
    momentum: float = 0.9,
) -> None:
    """Train with a process for each stage, and kill each of them once, by SIGKILL.

    Where stages run freely the one that was killed is started again alone, from its own last
    checkpoint; where they keep step all are. Beside these, trainings in which nobody is killed.

    Args:
        out: Folder of the record.
        methods: The methods.
        network: Name in the zoo, with options.
        data: Name of a data set that needs no files.
        stages: K, balanced.
        victims: The stages that are killed, each in a training of its own.
        epochs: Epochs that each stage learns.
        killed_at: The batch that a stage has just learned from when it is killed.
        every: Ticks, or turns of a stage, from one checkpoint to the next.
        seeds: Seeds.
        batch: Samples of a batch.
        rate: Learning rate of SGD.
        momentum: Of SGD.

    Raises:
        OptionError: An option is out of range.
        HocketError: A training did not come to its end.
    """
    chosen = dict(locals())
    numbers = {"epochs": epochs, "killed_at": killed_at, "every": every, "batch": batch}
    problems = too_small(numbers)
    if stages < 2:
        problems.append(f"stages is {stages}; give 2 or more, so that others can go on")
    problems += [
        f"there is no stage {k} to kill; the {stages} stages are 0 to {stages - 1}"
        for k in victims
        if not 0 <= k < stages
    ]
    if problems:
        raise OptionError(listed("cannot measure what a kill costs", problems))
    frees = {method: parse_method(method).replay is not None for method in methods}
    record = Record.of(kill_recovery, chosen)
    rows = []
    for method, free in frees.items():
        for seed in seeds:
            for victim in (None, *victims):
                work = record.settings | {"method": method, "seed": seed, "victim": victim}
                row = {"row": method, "seed": seed, "victim": victim, **_measured(work, free)}
                rows.append(row)
                who = "nobody" if victim is None else f"stage {victim}"
                told = f"{method}, seed {seed}, {who} killed: {row['test_error']:.2%} wrong"
                print(told, file=sys.stderr, flush=True)
    record.with_rows(rows).write(out)


def _measured(work: Mapping[str, Any], free: bool) -> dict[str, Any]:
    """What one training came to."""
    with TemporaryDirectory() as folder:
        alone = Restarts(1) if free else None

        def start(again: bool) -> int:
            return launch(
                _work, folder, dict(work), processes=work["stages"], threads=1, alone=alone
            )

        if retry_after_loss(start, Restarts(0 if free or work["victim"] is None else 1)):
            raise HocketError(f"a process of {work['method']!r} failed; what it said is above")
        place = Path(folder)
        ranks = range(work["stages"])
        said = [json.loads((place / f"{rank}.json").read_text()) for rank in ranks]
        turns = [_lines(place / f"{rank}.turns") for rank in ranks]
        killed_s = float(mark.read_text()) if (mark := place / "killed").exists() else None
    begun, end = min(first[0][1] for first in turns), max(last[-1][1] for last in turns)
    row = {
        "test_error": said[0]["test_error"],
        "seconds": end - begun,
        "packets_lost": sum(own["lost"] for own in said),
        "packets_orphaned": sum(own["orphaned"] for own in said),
    }
    return row | (_cost(turns, work["victim"], killed_s) if killed_s is not None else NO_COST)


NO_COST = {"turns_again": 0, "others_again": 0, "away_s": None, "others_learned": None}
"""Where nobody was killed."""


def _cost(
    turns: Sequence[Sequence[tuple[int, float]]], victim: int, killed_s: float
) -> dict[str, Any]:
    """What was learned twice, and what was not in the meantime.

    Args:
        turns: The batches that each stage has learned from, with the time, in all its lives.
        victim: The stage that was killed.
        killed_s: When.
    """
    again = [len(own) - len({number for number, _ in own}) for own in turns]
    back_s = next(when for _, when in turns[victim] if when > killed_s)
    others = [own for k, own in enumerate(turns) if k != victim]
    meanwhile = [sum(killed_s < when < back_s for _, when in own) for own in others]
    return {
        "turns_again": again[victim],
        "others_again": sum(again) - again[victim],
        "away_s": back_s - killed_s,
        "others_learned": sum(meanwhile),
    }


def _lines(file: Path) -> list[tuple[int, float]]:
    rows = (line.split() for line in file.read_text().splitlines())
    return [(int(number), float(when)) for number, when in rows]


def _work(folder: str, work: dict[str, Any]) -> int:
    """What each process does: train, note what it learns and when, and perhaps be killed."""
    place, rank = Path(folder), int(os.environ["RANK"])
    mark, kept = place / "killed", place / "checkpoints"
    loaded = datasets.load(work["data"], batch_size=work["batch"], seed=work["seed"])
    torch.manual_seed(work["seed"])
    asked = Named.parse(work["network"])
    with (place / f"{rank}.turns").open("a", buffering=1) as notes:

        def watch(event: Event, stage: Stage) -> None:
            if event.action.kind != "B":
                return
            notes.write(f"{event.action.batch} {time.time()}\n")
            due = (rank, event.action.batch) == (work["victim"], work["killed_at"])
            if due and not mark.exists():
                mark.write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)

        trainer = Trainer(
            zoo.create_fitted(asked.name, loaded.shape, loaded.classes, **asked.options),
            stages=work["stages"],
            method=parse_method(work["method"]),
            optimizer=lambda parameters: torch.optim.SGD(
                parameters, lr=work["rate"], momentum=work["momentum"]
            ),
            seed=work["seed"],
            watchers=[watch],
            resumable=True,
        )
        if identity.has_rejoined() or newest_first(kept):
            trainer.resume(kept)
        checkpoints = Checkpoints(kept, every=work["every"])
        trainer.fit(
            loaded.train, epochs=work["epochs"], progress=False, checkpoints=checkpoints
        )
        uses = trainer.stages[0].receive_stats
        said = {
            "test_error": trainer.evaluate(loaded.test).error,
            "lost": uses.lost if uses is not None else 0,
            "orphaned": uses.orphaned if uses is not None else 0,
        }
    (place / f"{rank}.json").write_text(json.dumps(said))
    return 0
