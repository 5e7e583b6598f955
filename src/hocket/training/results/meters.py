"""Meters that add up the results of a training, batch by batch."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hocket.engine.event import Event
from hocket.errors import DataError, NonFiniteError
from hocket.signals.losses import Loss, compute_loss, count_errors, ignored_index
from hocket.stage.passes.forward_only import Prediction
from hocket.stage.report import ActionReport
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.results.own_metrics import OwnMetrics

MOST_UNREAD = 1024
"""Reports whose losses a meter leaves on their device, where each takes some memory."""


class TrainingMeter:
    """Losses, staleness and skipped batches of the events of one epoch.

    Losses stay on their device until one is read, as the device has to complete all its work
    for that.
    """

    def __init__(self) -> None:
        # By stage and epoch: the loss of each part of a batch, and the targets that it is over.
        self._read: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self._unread: list[tuple[int, ActionReport]] = []
        self._staleness: dict[int, list[int]] = {}
        self._skipped: Counter[int] = Counter()
        self._lr: dict[int, float] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Count the backwards among the events."""
        for event in events:
            report, stage = event.report, event.action.stage
            if report.lr is not None:
                self._lr[stage] = report.lr
            if event.action.kind == "B" and report.skipped:
                self._skipped[stage] += 1
            elif event.action.kind == "B":
                self._staleness.setdefault(stage, []).append(report.staleness or 0)
                if report.has_loss:
                    self._unread.append((stage, report))
        if len(self._unread) > MOST_UNREAD:
            self._losses()

    def _losses(self) -> dict[tuple[int, int], list[tuple[float, float]]]:
        """Return losses and numbers of targets by stage and epoch, of all batches so far."""
        for stage, report in self._unread:
            losses = self._read.setdefault((stage, report.epoch), [])
            for part in report.parts or [report]:
                assert part.loss is not None, "it has one"
                losses.append((part.loss, part.targets or 0))
        self._unread.clear()
        return self._read

    def values(self, stage: int | None = None) -> dict[str, Any]:
        """Return all counts, of all stages or of one, as plain values."""
        return {
            "losses": [
                [*key, [list(pair) for pair in pairs]]
                for key, pairs in self._losses().items()
                if stage in (None, key[0])
            ],
            "staleness": [
                [k, list(v)] for k, v in self._staleness.items() if stage in (None, k)
            ],
            "skipped": [[k, n] for k, n in self._skipped.items() if stage in (None, k)],
        }

    def merge(self, values: dict[str, Any]) -> None:
        """Add the counts of another process.

        Replicas of a stage have the same staleness and skip the same batches. After a
        checkpoint of one process that simulates them only the first has all of these.
        """
        for stage, epoch, pairs in values["losses"]:
            self._losses().setdefault((stage, epoch), []).extend((x, n) for x, n in pairs)
        for stage, staleness in values["staleness"]:
            self._staleness[stage] = max(self._staleness.get(stage, []), staleness, key=len)
        self._skipped |= dict(values["skipped"])

    @property
    def newest_lr(self) -> float | None:
        """Newest learning rate, of the first stage that has one; None without any."""
        return self._lr[min(self._lr)] if self._lr else None

    def newest_loss(self, epoch: int | None) -> float | None:
        """Return the newest loss of an epoch's batches (None: of all); None without any."""
        losses = self._last_losses(epoch)
        return losses[-1][0] if losses else None

    def owner(self, epoch: int | None, last: int) -> str:
        """Return the owner of local losses, as " of stage 0"; empty for the network's.

        Args:
            epoch: Epoch whose losses count; None for all.
            last: Last stage, whose losses are the network's.
        """
        stage = self._loss_stage(epoch)
        return "" if stage in (None, last) else f" of stage {stage}"

    def _loss_stage(self, epoch: int | None) -> int | None:
        return max((s for s, e in self._losses() if epoch in (None, e)), default=None)

    def mean_loss(self, epoch: int | None) -> float:
        """Return the mean loss over the targets of an epoch's batches (None: all), or NaN."""
        # Sorted, for the same bits whichever process or replica has counted a loss.
        pairs = sorted((loss * n, n) for loss, n in self._last_losses(epoch) if n)
        total = sum(count for _, count in pairs)
        return sum(loss for loss, _ in pairs) / total if total else math.nan

    def _last_losses(self, epoch: int | None) -> list[tuple[float, float]]:
        """Return losses and numbers of targets, at the last stage with any."""
        last = self._loss_stage(epoch)
        found = self._losses().items()
        return [p for (s, e), pairs in found if s == last and epoch in (None, e) for p in pairs]

    def epoch(
        self,
        number: int,
        stages: int,
        evaluation: EvaluationResult | None,
        *,
        seconds: float,
        samples: int,
        all_losses: bool = False,
        spared: int = 0,
    ) -> EpochResult:
        """Return the result of the epoch.

        Args:
            number: Number of the epoch, from 0.
            stages: Number of stages.
            evaluation: Result on the validation data, if there are any.
            seconds: Time of training.
            samples: Number of samples that were trained on.
            all_losses: Take losses of all batches, as each stage counts its own epochs.
            spared: Batches that a stage may skip before it learns from any.

        Raises:
            NonFiniteError: A stage has skipped all batches that came back to it.
        """
        # Refuse an epoch in which a stage has learned nothing.
        idle = [k for k, n in self._skipped.items() if n > spared and k not in self._staleness]
        if idle:
            k = min(idle)
            raise NonFiniteError(
                f"epoch {number}: stage {k} has skipped all its {self._skipped[k]} batches, as "
                "something was NaN or infinite in each; lower the learning rate, warm up, or "
                "look at the data"
            )
        # Average what the others have counted.
        staleness = [self._staleness.get(k, []) for k in range(stages)]
        return EpochResult(
            number=number,
            loss=self.mean_loss(None if all_losses else number),
            evaluation=evaluation,
            seconds=seconds,
            samples=samples,
            staleness=tuple(sum(s) / len(s) if s else 0.0 for s in staleness),
            skipped=tuple(self._skipped[k] for k in range(stages)),
        )


class EvaluationMeter:
    """Losses and errors of the predictions of stages on data they are not trained on.

    Args:
        stages: Number of stages; the output of the last one is the network's.
        metrics: Metrics of the user's own, which begin anew.
    """

    def __init__(self, stages: int, metrics: OwnMetrics) -> None:
        self._last = stages - 1
        self._own = metrics
        self._own.reset()
        self._own_values: dict[str, float] = {}
        self._loss = 0.0
        self._countable = True  # targets are class numbers
        # Samples, weights of the losses, and by who made them wrong and all predictions.
        self._counts: Counter[str] = Counter()

    def add(self, prediction: Prediction, loss: Loss) -> None:
        """Count a stage's prediction for one batch.

        Raises:
            DataError: Neither targets nor outputs show how many samples there are.
        """
        # Count errors only for the head of an earlier stage.
        output, targets = prediction.output, prediction.targets
        ignored = ignored_index(loss)
        if prediction.stage < self._last:
            counts = count_errors(prediction.prediction, targets, ignored)
            self._count(f"stage {prediction.stage}", counts)
            return
        # Count samples, loss and errors of the network.
        samples = prediction.samples
        if not samples:
            raise DataError(
                "samples cannot be counted: neither the targets nor the network's outputs, nor "
                "the inputs of its last stage, hold a tensor of shape (B, ...) with B > 0; "
                "give the targets of each batch, and leave out empty batches"
            )
        self._counts["samples"] += samples
        counts = count_errors(output, targets, ignored)
        weight = samples if counts is None else counts[1]
        value = float(compute_loss(loss, output, targets))
        if weight:  # else it is a mean of nothing, which PyTorch takes for NaN
            self._loss += value * weight
            self._counts["weight"] += weight
        self._count("ensemble", count_errors(prediction.ensemble, targets, ignored))
        self._count("network", counts)
        self._countable &= counts is not None
        self._own.update(output, targets, samples)  # at last: it may edit what it is given

    def values(self) -> list[Any]:
        """Return all counts as plain values."""
        return [self._loss, self._countable, dict(self._counts), self._own.compute()]

    def merge(self, values: Sequence[Any]) -> None:
        """Add the counts of another process."""
        loss, countable, counts, own = values
        self._loss += loss
        self._countable = self._countable and countable
        self._counts.update(counts)
        self._own_values |= own

    def result(self) -> EvaluationResult:
        """Return means over all samples.

        Raises:
            DataError: Nothing was counted, or no target is one of the classes.
        """
        counts = self._counts
        if not counts["samples"]:
            raise DataError("there are no batches to evaluate on; an iterator can be used once")
        if not counts["weight"]:
            raise DataError(
                "there is nothing to evaluate on: no target of any batch is one of the classes"
            )
        exits = [*(f"stage {k}" for k in range(self._last)), "network"]
        errors = {
            who: counts[f"errors of {who}"] / made
            for who in (*exits, "ensemble")
            if (made := counts[f"predictions of {who}"])
        }
        early = self._countable and errors.keys() >= {*exits, "ensemble"}
        return EvaluationResult(
            loss=self._loss / counts["weight"],
            error=errors["network"] if self._countable else None,
            samples=counts["samples"],
            exits=tuple(errors[who] for who in exits) if early else (),
            ensemble=errors["ensemble"] if early else None,
            metrics=self._own_values,
        )

    def _count(self, who: str, counts: tuple[int, int] | None) -> None:
        """Add the numbers of wrong and of all predictions, if they are of classes."""
        if counts is not None:
            self._counts[f"errors of {who}"] += counts[0]
            self._counts[f"predictions of {who}"] += counts[1]
