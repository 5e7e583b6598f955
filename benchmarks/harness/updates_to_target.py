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
from hocket.errors import HocketError, OptionError, format_problems
from hocket.files import write_text_atomically
from hocket.options import Named
from hocket.runs.config import RunConfig, parse_config
from hocket.training.fit.interrupt import Interrupt, stop_signals
from hocket_lab.studies.study import Study
from hocket_lab.studies.sweep import sweep

LOCAL = "replicas"
"""Folder of the results of replicas, next to the folder of the other trainings."""


class StoppedError(HocketError):
    """A signal stopped the trainings; the same command goes on."""


@dataclass(frozen=True)
class Trainings:
    """Trainings of rows at several learning rates.

    Attributes:
        folder: Folder of the results.
        base: Options of `hocket train` that all have, with the batch of an update.
        cuts: Modules at which stages 1, 2, ... begin.
        rates: Learning rates, of which each row takes its best.
        seed: Seed of weights and batches.
        target: Test loss to reach.
        jobs: Trainings at a time; replicas train one after the other, with as many threads.
    """

    folder: Path
    base: Mapping[str, Any]
    cuts: tuple[str, ...]
    rates: Sequence[float]
    seed: int
    target: float
    jobs: int

    def run(self, rows: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Train what has no result yet; return the best training of each row.

        Args:
            rows: Methods as rows, with extra delay and codec, or rows of local updates.

        Returns:
            By row ``learning_rate``, ``at_edge`` (True if no rate was tried on one side of it),
            ``updates`` to the target (None if it was not reached) and ``curve``.

        Raises:
            StoppedError: A signal stopped it.
            HocketError: A training failed.
        """
        rows = list(dict.fromkeys(rows))
        methods = [row for row in rows if Row.parse(row).name not in BUILDERS or row == BASE]
        found = self._run_methods(methods) | self._run_replicas(
            [row for row in rows if row not in methods]
        )
        return {row: self._choose(found[row]) for row in rows}

    def config(self, row: str, rate: float) -> RunConfig:
        """Return the run of a row of a method at a learning rate."""
        optimizer = Named.parse(self.base["optimizer"]).with_option("lr", rate)
        options = {**self.base, **self.options(row), "optimizer": str(optimizer)}
        options["seed"] = self.seed
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

    def _run_methods(self, rows: Sequence[str]) -> dict[str, dict[float, Any]]:
        """Return the curves of methods by row and rate.

        Raises:
            StoppedError: A signal stopped the trainings.
            HocketError: A training failed.
        """
        study = Study(
            name=self.folder.name,
            base=dict(self.base),
            grid=[self.options(row) for row in rows],
            learning_rates=list(self.rates),
            seeds=[self.seed],
            jobs=self.jobs,
        )
        record = sweep(study, self.folder / "methods")
        if record.failures and not record.stopped_by:
            raise HocketError(format_problems("these trainings failed", record.failures))
        if record.stopped_by or record.unfinished:
            raise StoppedError("trainings were stopped; the same command goes on")
        return {
            row: {run["learning_rate"]: points(run["curve"]) for run in kept["runs"]}
            for row, kept in zip(rows, record.rows, strict=True)
        }

    def _run_replicas(self, rows: Sequence[str]) -> dict[str, dict[float, Any]]:
        """Return the curves of replicas by row and rate."""
        files = {
            (row, rate): self.folder / LOCAL / f"{Row.parse(row).slug}-lr-{rate:g}.json"
            for row in rows
            for rate in self.rates
        }
        missing = {key: file for key, file in files.items() if not file.exists()}
        start_s = time.perf_counter()
        with Interrupt(stop_signals()) as interrupt, torch_threads(self.jobs):
            for number, ((row, rate), file) in enumerate(missing.items(), start=1):
                work = RunWorkload.of(
                    self.config(BASE, rate), stages=len(self.cuts) + 1, threads=self.jobs
                )
                local = build_baseline(row, work, Balancer(work))
                assert isinstance(local, LocalUpdates), "the row is one of local updates"
                write_record_json(file, train_replicas(work, local, interrupt))
                left_s = (time.perf_counter() - start_s) / number * (len(missing) - number)
                line = f"[{number}/{len(missing)}] {row}, lr {rate:g}: {left_s:.0f} s to go"
                print(line, file=sys.stderr, flush=True)
        curves: dict[str, dict[float, Any]] = {row: {} for row in rows}
        for (row, rate), file in files.items():
            curves[row][rate] = read_json(file)
        return curves

    def _choose(self, curves: Mapping[float, Sequence[dict[str, Any]]]) -> dict[str, Any]:
        """Return the training that reaches the target first, or else comes nearest to it."""
        inf = float("inf")
        reached = {rate: first_reaching(curve, self.target) for rate, curve in curves.items()}
        rate = min(
            curves,
            key=lambda each: (
                reached[each] or inf,
                min((point["test_loss"] for point in curves[each]), default=inf),
            ),
        )
        return {
            "learning_rate": rate,
            "at_edge": len(self.rates) > 1 and rate in (min(self.rates), max(self.rates)),
            "updates": reached[rate],
            "curve": list(curves[rate]),
        }


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


def first_reaching(curve: Sequence[Mapping[str, Any]], target: float) -> int | None:
    """Return the updates of the first point at the target; None if there is none.

    >>> first_reaching([{"updates": 5, "test_loss": 3.0}, {"updates": 10, "test_loss": 2.0}], 2)
    10
    """
    return next((point["updates"] for point in curve if point["test_loss"] <= target), None)


def points(curve: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return updates and test loss of a run's curve, which may have evaluations without one."""
    return [
        {"updates": point["updates"], "test_loss": point["test_loss"]}
        for point in curve
        if point["test_loss"] is not None
    ]


def shorten_text(source: Path | None, characters: int | None, folder: Path) -> str | None:
    """Return the place of the data: a file with the beginning of a text, if asked for.

    Args:
        source: The text, or a folder with it; None for data without files.
        characters: Number of characters at the beginning; None for the whole source.
        folder: Folder in which the beginning is written.

    Raises:
        OptionError: There is no text at that place.
    """
    if source is None or characters is None:
        return None if source is None else str(source)
    whole = next(iter(sorted(source.glob("*.txt"))), source)
    if not whole.is_file():
        raise OptionError(
            f"there is no text in {str(source)!r}; give a .txt file or a folder with one, or "
            "no number of characters"
        )
    with whole.open(encoding="utf-8") as text:
        beginning = text.read(characters)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(folder / "text.txt", beginning)
    return str(folder / "text.txt")
