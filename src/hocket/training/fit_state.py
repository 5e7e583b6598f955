"""Where a training by epochs has come to: what is behind it, and what of the present epoch."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hocket.data.loader_state import loader_state, remaining_batches, restore_loader
from hocket.engine.event import Event
from hocket.training.metrics import EpochResult, EvaluationResult, TrainingMeter
from hocket.tree import Tree


class FitState:
    """The epochs of one ``fit``, those before a restart included.

    Args:
        epoch: Whole epochs that the trainer has behind it, those of a ``fit`` before included.

    Attributes:
        epoch: The same, now.
        history: What the epochs came to that are over.
        batches: How many have entered in the present epoch; whoever feeds them counts.
        samples: Inputs in these; 0 in a process that reads no data.
        meter: What the events of the present epoch add up to.
        rows: Of the epochs that a stage has counted for itself, where each does so: what each
            came to, its samples and its seconds.
    """

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.history: list[EpochResult] = []
        self.batches = self.samples = 0
        self.meter = TrainingMeter()
        self.rows: list[Any] = []
        self._seconds = 0.0  # of the present epoch before ``_start``
        self._start = time.perf_counter()
        self._chance: dict[str, Any] | None = None  # at the beginning of the present epoch

    @property
    def seconds(self) -> float:
        """Time that the present epoch has taken so far."""
        return self._seconds + time.perf_counter() - self._start

    def remaining_batches(
        self, train: Iterable[tuple[Tree, Tree]]
    ) -> Iterator[tuple[Tree, Tree]]:
        """The batches of the present epoch that have not entered."""
        if self._chance is not None:
            restore_loader(self._chance, train)
        else:
            self._chance = loader_state(train)
        self._start = time.perf_counter()
        return remaining_batches(train, self.batches)

    def add(self, events: Sequence[Event], samples: int) -> None:
        """A tick was done at which a batch entered."""
        self.meter.add(events)
        self.samples += samples

    def end_epoch(self, epoch: EpochResult) -> None:
        """The present epoch is over."""
        self.history.append(epoch)
        self.epoch += 1
        self._anew()

    def end_own_epoch(self) -> None:
        """The present epoch is over for this stage; the others are somewhere else."""
        self.rows.append([self.meter.values(), self.samples, self.seconds])
        self.epoch += 1
        self._anew()

    def skip_epoch(self) -> None:
        """The data are at their end, and the stage had learned enough before."""
        self.rows[-1][2] += self.seconds
        self._anew()

    def _anew(self) -> None:
        self.batches = self.samples = 0
        self.meter = TrainingMeter()
        self._seconds, self._start, self._chance = 0.0, time.perf_counter(), None

    def state_dict(self, stage: int, train: object) -> dict[str, Any]:
        """What is to be kept with a stage: its own counts, and the chance of the data."""
        chance = self._chance if self._chance is not None else loader_state(train)
        return {"tally": self.meter.values(stage), "chance": chance, "rows": list(self.rows)}

    def summary(self) -> dict[str, Any]:
        """What is the same for all stages, as JSON values."""
        return {
            "epoch": self.epoch,
            "history": [asdict(epoch) for epoch in self.history],
            "batches": self.batches,
            "samples": self.samples,
            "seconds": self.seconds,
        }

    def load_state_dict(
        self, summary: dict[str, Any], first: dict[str, Any], tallies: Sequence[Any]
    ) -> None:
        """Go on from where another one had come to.

        Args:
            summary: What was the same for all stages.
            first: What was kept with the first stage that there is.
            tallies: The counts of the stages of this process.
        """
        self.epoch = summary["epoch"]
        self.history = [_epoch(values) for values in summary["history"]]
        self.batches, self.samples = summary["batches"], summary["samples"]
        self._seconds = summary["seconds"]
        self._chance = first["chance"]
        self.rows = [list(row) for row in first["rows"]]
        for tally in tallies:
            self.meter.merge(tally)


def _epoch(values: dict[str, Any]) -> EpochResult:
    score = values["evaluation"]
    if score is not None:
        score = EvaluationResult(**score | {"exits": tuple(score["exits"])})
    rows = {name: tuple(values[name]) for name in ("staleness", "skipped")}
    return EpochResult(**values | rows | {"evaluation": score})
