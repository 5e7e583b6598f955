"""Updates that rows need to a test loss, without any link; finished trainings are kept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.row import Row
from benchmarks.peers.rows import BASE, REPLICATED, parse_method_row, replica_options
from hocket.distributed.replicas.meet import as_meet
from hocket.errors import HocketError, format_problems
from hocket_lab.studies.study import Study
from hocket_lab.studies.sweep import sweep

Curve = Sequence[dict[str, Any]]
"""Points of a training with ``updates`` and ``test_loss``."""
CHECKPOINTS = {"checkpoint_every": 200, "checkpoint_keep": 1}
"""Ticks between checkpoints of methods: of large networks, they fill a disk."""


class StoppedError(HocketError):
    """A signal stopped the trainings; the same command goes on."""


@dataclass(frozen=True)
class Trainings:
    """Trainings of rows at several learning rates.

    Attributes:
        folder: Folder of the results.
        base: Options of `hocket train` that all have, with the batch of an update.
        cuts: Modules at which stages 1, 2, ... begin.
        jobs: Trainings at a time.
    """

    folder: Path
    base: Mapping[str, Any]
    cuts: tuple[str, ...]
    jobs: int

    def search(
        self, rows: Sequence[str], rates: Sequence[float], most: int, seed: int
    ) -> dict[str, dict[float, Curve]]:
        """Train rows at learning rates, and further while the best is the least or largest.

        Args:
            rows: Methods as rows, with extra delay and codec, or rows of replicas.
            rates: Learning rates that all rows try.
            most: Most rates that a row tries.
            seed: Seed of weights and batches.

        Returns:
            The curves by row and rate.

        Raises:
            StoppedError: A signal stopped it.
            HocketError: A training failed.
        """
        found = self.run(dict.fromkeys(rows, rates), seed)
        while True:
            further: dict[str, Sequence[float]] = {}
            for row, curves in found.items():
                best = best_rate(curves, self.base["updates"])
                beyond = {max(curves): 2 * best, min(curves): best / 2}
                if best in beyond and len(curves) < most:
                    further[row] = [beyond[best]]
            if not further:
                return found
            for row, curves in self.run(further, seed).items():
                found[row] |= curves

    def run(
        self, rates: Mapping[str, Sequence[float]], seed: int
    ) -> dict[str, dict[float, Curve]]:
        """Train what has no result yet; return the curves by row and rate.

        Raises:
            StoppedError: A signal stopped it.
            HocketError: A training failed.
        """
        if not rates:
            return {}
        study = Study(
            name=self.folder.name,
            base={**self.base, **CHECKPOINTS},
            grid=[
                {**self.options(row), "learning_rates": [*of_row]}
                for row, of_row in rates.items()
            ],
            seeds=[seed],
            jobs=self.jobs,
        )
        record = sweep(study, self.folder / "methods")
        if record.failures and not record.stopped_by:
            raise HocketError(format_problems("these trainings failed", record.failures))
        if record.stopped_by or record.unfinished:
            raise StoppedError("trainings were stopped; the same command goes on")
        return {
            row: {run["learning_rate"]: points(run["curve"]) for run in kept["runs"]}
            for row, kept in zip(rates, record.rows, strict=True)
        }

    def options(self, row: str) -> dict[str, Any]:
        """Return the options of `hocket train` for a row."""
        parsed = Row.parse(row)
        if parsed.name in REPLICATED:
            told = replica_options(parsed)
            # Evaluated after meetings, as replicas differ in between.
            meet, every = as_meet(told.get("meet")), self.base["evaluate_every"]
            together = 1 if meet is None else meet.every
            return {
                "method": BASE,
                "stages": 1,
                "replicas": len(self.cuts) + 1,
                "evaluate_every": math.ceil(every / together) * together,
                **told,
            }
        own = parse_method_row(parsed)
        alone = row == BASE
        return {
            "method": own.text,
            "stages": 1 if alone else len(self.cuts) + 1,
            "plan": "balanced" if alone else ",".join(self.cuts),
            "extra_delay": own.extra_delay,
            "codec": own.codec,
            "batch_size": self.base["batch_size"] // own.method.accumulate,
        }


def best_rate(curves: Mapping[float, Curve], updates: int) -> float:
    """Return the learning rate with the smallest loss after this number of updates."""
    return min(curves, key=lambda rate: final_loss(curves[rate], updates))


def final_loss(curve: Curve, updates: int) -> float:
    """Return the loss after this number of updates; infinity if the training diverged before.

    With batches in flight, the first stage may have made an update or two less.
    """
    reached = curve and curve[-1]["updates"] >= 0.99 * updates
    return float(curve[-1]["test_loss"]) if reached else math.inf


def stays_below(curve: Curve, target: float) -> int | None:
    """Return the updates of the first point from which all are at or below the target.

    >>> losses = enumerate([2.5, 1.9, 2.1, 2.0, 1.8])
    >>> stays_below([{"updates": 5 * n, "test_loss": loss} for n, loss in losses], 2.0)
    15
    """
    found = None
    for point in reversed(curve):
        if point["test_loss"] > target:
            break
        found = point["updates"]
    return found


def points(curve: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return updates and test loss of a run's curve, which may have evaluations without one."""
    return [
        {"updates": point["updates"], "test_loss": point["test_loss"]}
        for point in curve
        if point["test_loss"] is not None
    ]
