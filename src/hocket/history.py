"""What a training came to, epoch by epoch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.engine.trace import Event
from hocket.errors import DataError
from hocket.losses import wrong
from hocket.method import Loss
from hocket.signals.targets import fitting
from hocket.tree import Tree, tensors


@dataclass(frozen=True)
class Score:
    """How a network does on data it is not trained on.

    Attributes:
        loss: Mean loss.
        error: Share of wrong predictions, a fraction; None where targets are not class numbers.
        samples: How many inputs it was measured on.
    """

    loss: float
    error: float | None
    samples: int


@dataclass(frozen=True)
class Epoch:
    """One epoch of a training.

    Attributes:
        number: Counted from 0.
        loss: Mean training loss of its batches that have reached the last stage.
        score: On the validation data, if there are any.
        seconds: Time of training, without the evaluation.
        samples: Inputs that were trained on.
        staleness: For each stage, the mean staleness measured.
    """

    number: int
    loss: float
    score: Score | None
    seconds: float
    samples: int
    staleness: tuple[float, ...]


class Tally:
    """What the events of one epoch add up to."""

    def __init__(self) -> None:
        self._losses: dict[tuple[int, int], list[float]] = {}  # (stage, epoch of the batch)
        self._staleness: dict[int, list[int]] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Count the backwards among the events."""
        for event in events:
            report, stage = event.report, event.action.stage
            if event.action.kind == "B":
                self._staleness.setdefault(stage, []).append(report.staleness or 0)
                if report.loss is not None:
                    self._losses.setdefault((stage, report.epoch), []).append(report.loss)

    def values(self, stage: int | None = None) -> dict[str, Any]:
        """What was counted, of all stages or of one, as plain values."""
        chosen = range(stage, stage + 1) if stage is not None else self._staleness
        return {
            "losses": [[*key, list(v)] for key, v in self._losses.items() if key[0] in chosen],
            "staleness": [[k, list(v)] for k, v in self._staleness.items() if k in chosen],
        }

    def merge(self, values: dict[str, Any]) -> None:
        """Count what another process has counted, too."""
        for stage, epoch, losses in values["losses"]:
            self._losses.setdefault((stage, epoch), []).extend(losses)
        for stage, staleness in values["staleness"]:
            self._staleness.setdefault(stage, []).extend(staleness)

    def losses(self, epoch: int) -> list[float]:
        """The losses of an epoch's batches at the last stage that has any."""
        last = max((s for s, e in self._losses if e == epoch), default=0)
        return self._losses.get((last, epoch), [])

    def epoch(
        self, number: int, stages: int, score: Score | None, seconds: float, samples: int
    ) -> Epoch:
        """The epoch as a value."""
        losses = self.losses(number)
        staleness = [self._staleness.get(k, []) for k in range(stages)]
        return Epoch(
            number=number,
            loss=sum(losses) / len(losses) if losses else float("nan"),
            score=score,
            seconds=seconds,
            samples=samples,
            staleness=tuple(sum(s) / len(s) if s else 0.0 for s in staleness),
        )


class Marks:
    """What a network's outputs on other data add up to."""

    def __init__(self) -> None:
        self._loss = 0.0
        self._wrongs = self._predictions = self._samples = 0
        self._countable = True  # whether targets are class numbers

    def add(self, output: Tree, targets: Tree, loss: Loss) -> None:
        """Count the outputs for one batch."""
        count = len(tensors(targets)[0])
        with fitting(output):
            self._loss += float(loss(output, targets)) * count
        self._samples += count
        missed = wrong(output, targets)
        self._countable = self._countable and missed is not None
        self._wrongs += missed[0] if missed else 0
        self._predictions += missed[1] if missed else 0

    def values(self) -> list[Any]:
        """What was counted, as plain values."""
        return [self._loss, self._wrongs, self._predictions, self._samples, self._countable]

    def merge(self, values: Sequence[Any]) -> None:
        """Count what another process has counted, too."""
        self._loss += values[0]
        self._wrongs += values[1]
        self._predictions += values[2]
        self._samples += values[3]
        self._countable = self._countable and values[4]

    def score(self) -> Score:
        """The means.

        Raises:
            DataError: Nothing was counted.
        """
        if not self._samples:
            raise DataError("there are no batches to evaluate on; an iterator can be used once")
        error = self._wrongs / self._predictions if self._countable else None
        return Score(self._loss / self._samples, error, self._samples)
