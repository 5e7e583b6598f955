"""What a training came to, epoch by epoch."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.engine.event import Event
from hocket.errors import DataError, NonFiniteError
from hocket.losses import Loss, count_errors
from hocket.signals.targets import checked_targets
from hocket.stage.prediction import Prediction
from hocket.tree import Tree, tensors


@dataclass(frozen=True)
class EvaluationResult:
    """How a network does on data it is not trained on.

    Attributes:
        loss: Mean loss.
        error: Share of wrong predictions, a fraction; None where targets are not class numbers.
        samples: How many inputs it was measured on.
        exits: Where stages have heads, the error of each one's prediction alone; the last is
            that of the network. Empty where there are no heads, or no class numbers.
        ensemble: The error of all of them together, each counted twice the one before it; None
            where there are no exits.
    """

    loss: float
    error: float | None
    samples: int
    exits: tuple[float, ...] = ()
    ensemble: float | None = None


@dataclass(frozen=True)
class EpochResult:
    """One epoch of a training.

    Attributes:
        number: Counted from 0.
        loss: Mean training loss of its batches that have reached the last stage.
        evaluation: On the validation data, if there are any.
        seconds: Time of training, without the evaluation.
        samples: Inputs that were trained on.
        staleness: For each stage, the mean staleness measured.
        skipped: For each stage, the batches that came back and that it did not learn from, as
            something was NaN or infinite.
    """

    number: int
    loss: float
    evaluation: EvaluationResult | None
    seconds: float
    samples: int
    staleness: tuple[float, ...]
    skipped: tuple[int, ...]


class TrainingMeter:
    """What the events of one epoch add up to."""

    def __init__(self) -> None:
        self._losses: dict[tuple[int, int], list[float]] = {}  # (stage, epoch of the batch)
        self._staleness: dict[int, list[int]] = {}
        self._skipped: Counter[int] = Counter()

    def add(self, events: Iterable[Event]) -> None:
        """Count the backwards among the events; losses of those that were done only."""
        for event in events:
            report, stage = event.report, event.action.stage
            if event.action.kind == "B" and report.skipped:
                self._skipped[stage] += 1
            elif event.action.kind == "B":
                self._staleness.setdefault(stage, []).append(report.staleness or 0)
                if report.loss is not None:
                    self._losses.setdefault((stage, report.epoch), []).append(report.loss)

    def values(self, stage: int | None = None) -> dict[str, Any]:
        """What was counted, of all stages or of one, as plain values."""
        every = self._staleness.keys() | self._skipped.keys()
        chosen = every if stage is None else {stage}
        return {
            "losses": [[*key, list(v)] for key, v in self._losses.items() if key[0] in chosen],
            "staleness": [[k, list(v)] for k, v in self._staleness.items() if k in chosen],
            "skipped": [[k, n] for k, n in self._skipped.items() if k in chosen],
        }

    def merge(self, values: dict[str, Any]) -> None:
        """Count what another process has counted, too."""
        for stage, epoch, losses in values["losses"]:
            self._losses.setdefault((stage, epoch), []).extend(losses)
        for stage, staleness in values["staleness"]:
            self._staleness.setdefault(stage, []).extend(staleness)
        for stage, count in values["skipped"]:
            self._skipped[stage] += count

    def losses(self, epoch: int | None) -> list[float]:
        """Of an epoch's batches, or of all if None, at the last stage that has any."""
        of = [(s, e) for s, e in self._losses if epoch is None or e == epoch]
        last = max((s for s, _ in of), default=0)
        return [loss for s, e in of if s == last for loss in self._losses[s, e]]

    def epoch(
        self,
        number: int,
        stages: int,
        evaluation: EvaluationResult | None,
        seconds: float,
        samples: int,
        *,
        own: bool = False,
    ) -> EpochResult:
        """The epoch as a value; where each stage counts its ``own``, losses are of all.

        Raises:
            NonFiniteError: A stage has skipped all batches that came back to it.
        """
        idle = [k for k in self._skipped if k not in self._staleness]
        if idle:
            k = min(idle)
            raise NonFiniteError(
                f"epoch {number}: stage {k} has skipped all its {self._skipped[k]} batches, as "
                "something was NaN or infinite in each; lower the learning rate, warm up, or "
                "look at the data"
            )
        losses = self.losses(None if own else number)
        staleness = [self._staleness.get(k, []) for k in range(stages)]
        return EpochResult(
            number=number,
            loss=sum(losses) / len(losses) if losses else float("nan"),
            evaluation=evaluation,
            seconds=seconds,
            samples=samples,
            staleness=tuple(sum(s) / len(s) if s else 0.0 for s in staleness),
            skipped=tuple(self._skipped[k] for k in range(stages)),
        )


class EvaluationMeter:
    """What the answers of stages to other data add up to.

    Args:
        stages: How many stages the network has; the last one's output is the network's.
    """

    def __init__(self, stages: int) -> None:
        self._last = stages - 1
        self._loss = 0.0
        self._samples = 0
        self._countable = True  # whether targets are class numbers
        self._missed: Counter[str] = Counter()  # wrong predictions, by who made them
        self._made: Counter[str] = Counter()  # all predictions

    def add(self, answer: Prediction, loss: Loss) -> None:
        """Count what a stage makes of one batch."""
        targets = answer.targets
        if answer.stage < self._last:
            self._count(f"stage {answer.stage}", answer.prediction, targets)
            return
        count = len(tensors(targets)[0])
        with checked_targets(answer.output):
            self._loss += float(loss(answer.output, targets)) * count
        self._samples += count
        self._count("ensemble", answer.votes, targets)
        self._countable &= self._count("network", answer.output, targets)

    def values(self) -> list[Any]:
        """What was counted, as plain values."""
        counts = [dict(self._missed), dict(self._made)]
        return [self._loss, self._samples, self._countable, *counts]

    def merge(self, values: Sequence[Any]) -> None:
        """Count what another process has counted, too."""
        loss, samples, countable, missed, made = values
        self._loss += loss
        self._samples += samples
        self._countable = self._countable and countable
        self._missed.update(missed)
        self._made.update(made)

    def result(self) -> EvaluationResult:
        """The means.

        Raises:
            DataError: Nothing was counted.
        """
        if not self._samples:
            raise DataError("there are no batches to evaluate on; an iterator can be used once")
        errors = {who: self._missed[who] / made for who, made in self._made.items()}
        exits = [*(f"stage {k}" for k in range(self._last)), "network"]
        early = self._countable and errors.keys() >= {*exits, "ensemble"}
        return EvaluationResult(
            loss=self._loss / self._samples,
            error=errors["network"] if self._countable else None,
            samples=self._samples,
            exits=tuple(errors[who] for who in exits) if early else (),
            ensemble=errors["ensemble"] if early else None,
        )

    def _count(self, who: str, prediction: Tree, targets: Tree) -> bool:
        """Count predictions, if they are some, of classes; whether they were."""
        missed = count_errors(prediction, targets)
        if missed is None:
            return False
        self._missed[who] += missed[0]
        self._made[who] += missed[1]
        return True
