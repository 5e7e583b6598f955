"""Updates that rows need to a test loss, without any link; finished trainings are kept."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.harness.balance import Balancer
from benchmarks.harness.record import read_json, write_record_json
from benchmarks.harness.run_workload import RunWorkload
from benchmarks.harness.workload import torch_threads
from benchmarks.peers.local_updates import LocalReplicas, LocalUpdates
from benchmarks.peers.row import Row
from benchmarks.peers.rows import BASE, BUILDERS, build_baseline, parse_method_row
from hocket.errors import HocketError, format_problems
from hocket.options import Named
from hocket.runs.config import RunConfig, parse_config
from hocket.training.fit.interrupt import Interrupt, stop_signals
from hocket_lab.studies.study import Study
from hocket_lab.studies.sweep import sweep

LOCAL = "replicas"
"""Folder of the results of replicas, next to the folder of the other trainings."""
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
        jobs: Trainings at a time; replicas train one after the other, with as many threads.
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
            rows: Methods as rows, with extra delay and codec, or rows of local updates.
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

        Args:
            rates: Learning rates of each row.
            seed: Seed of weights and batches.

        Raises:
            StoppedError: A signal stopped it.
            HocketError: A training failed.
        """
        methods = {
            row: of_row
            for row, of_row in rates.items()
            if Row.parse(row).name not in BUILDERS or row == BASE
        }
        others = {row: of_row for row, of_row in rates.items() if row not in methods}
        found = self._run_methods(methods, seed) if methods else {}
        return found | self._run_replicas(others, seed)

    def config(self, row: str, rate: float, seed: int) -> RunConfig:
        """Return the run of a row of a method at a learning rate."""
        optimizer = Named.parse(self.base["optimizer"]).with_option("lr", rate)
        options = {**self.base, **self.options(row), "optimizer": str(optimizer)}
        options["seed"] = seed
        return parse_config(options, f"row {row!r}")

    def options(self, row: str) -> dict[str, Any]:
        """Return the options of `hocket train` for a row of a method."""
        parsed = Row.parse(row)
        method = parse_method_row(parsed).method
        own = dict(parsed.options)
        delay, codec = own.pop("extra_delay", 0), own.pop("codec", "none")
        own.pop("checksum", None)  # which changes no result
        alone = row == BASE
        return {
            "method": str(Row(Named(parsed.name, own), parsed.remedies)),
            "stages": 1 if alone else len(self.cuts) + 1,
            "plan": "balanced" if alone else ",".join(self.cuts),
            "extra_delay": delay,
            "codec": str(codec),
            "batch_size": self.base["batch_size"] // method.accumulate,
        }

    def _run_methods(
        self, rates: Mapping[str, Sequence[float]], seed: int
    ) -> dict[str, dict[float, Curve]]:
        """Return the curves of methods by row and rate.

        Raises:
            StoppedError: A signal stopped the trainings.
            HocketError: A training failed.
        """
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

    def _run_replicas(
        self, rates: Mapping[str, Sequence[float]], seed: int
    ) -> dict[str, dict[float, Curve]]:
        """Return the curves of replicas by row and rate."""
        files = {
            (row, rate): self.folder / LOCAL / f"{Row.parse(row).slug}-{rate:g}-{seed}.json"
            for row, of_row in rates.items()
            for rate in of_row
        }
        missing = {key: file for key, file in files.items() if not file.exists()}
        start_s = time.perf_counter()
        with Interrupt(stop_signals()) as interrupt, torch_threads(self.jobs):
            for number, ((row, rate), file) in enumerate(missing.items(), start=1):
                work = RunWorkload.of(
                    self.config(BASE, rate, seed), stages=len(self.cuts) + 1, threads=self.jobs
                )
                local = build_baseline(row, work, Balancer(work))
                assert isinstance(local, LocalUpdates), "the row is one of local updates"
                write_record_json(file, train_replicas(work, local, interrupt))
                left_s = (time.perf_counter() - start_s) / number * (len(missing) - number)
                line = f"[{number}/{len(missing)}] {row}, lr {rate:g}: {left_s:.0f} s to go"
                print(line, file=sys.stderr, flush=True)
        curves: dict[str, dict[float, Curve]] = {row: {} for row in rates}
        for (row, rate), file in files.items():
            curves[row][rate] = read_json(file)
        return curves


def train_replicas(
    work: RunWorkload, local: LocalUpdates, interrupt: Interrupt
) -> list[dict[str, Any]]:
    """Train replicas in this process; return the test loss of their mean at each evaluation.

    Args:
        work: The run, whose batches are shared by the replicas.
        local: The replicas.
        interrupt: Signals that end the training.

    Returns:
        Points with ``updates`` and ``test_loss``, up to a loss that is not finite.

    Raises:
        StoppedError: A signal stopped it.
    """
    config = work.config
    replicas = LocalReplicas(work.initial_network(), local, work.optimizer)
    batches = islice(work.batches(multiple=local.processes), config.updates)
    curve: list[dict[str, Any]] = []
    for done, batch in enumerate(batches, start=1):
        if interrupt.asked:
            raise StoppedError("the trainings were stopped; the same command goes on")
        replicas.step(*batch)
        if done % config.evaluate_every == 0:
            loss = work.test_loss([network.state_dict() for network in replicas.networks])
            if not math.isfinite(loss):
                break
            curve.append({"updates": done, "test_loss": loss})
    return curve


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
