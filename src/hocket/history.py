"""What a training came to, epoch by epoch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hocket.engine.trace import Event


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

    def values(self) -> dict[str, Any]:
        """What was counted, as plain values."""
        return {
            "losses": [[*key, values] for key, values in self._losses.items()],
            "staleness": [[key, values] for key, values in self._staleness.items()],
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
