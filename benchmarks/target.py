"""Time to a test loss on machines over links: updates to it, times seconds of an update."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.balance import Balancer
from benchmarks.harness.forecast_times import forecast_updates
from benchmarks.harness.kept_results import KeptResults
from benchmarks.harness.link_times import NODES, TimedRow, link_problems, time_over_link
from benchmarks.harness.record import Record
from benchmarks.harness.run_workload import RunWorkload
from benchmarks.harness.settings import check_settings
from benchmarks.harness.updates_to_target import (
    Curve,
    StoppedError,
    Trainings,
    best_rate,
    final_loss,
    stays_below,
)
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.row import Row
from benchmarks.peers.rows import (
    BASE,
    REPLICATED,
    accumulated,
    as_method,
    build_baseline,
    is_method,
    parse_method_row,
    parse_row,
    trained_row,
)
from hocket.options import Named
from hocket.partition import Plan
from hocket.runs.config import parse_config
from hocket.runs.environment import machine, source_digest

ROWS = (
    "bp", "bp-all", "ddp", "1f1b:microbatches=4", "hocket-1f1b:accumulate=4",
    "pipe-sgd", "local-sgd:every=16", "local-sgd:every=64", "diloco:every=16",
    "diloco:every=64",
    *(
        f"{method}:accumulate=4{codec}{delay}+predict"
        for method in ("paci", "adl")
        for codec in ("", ",codec=int8")
        for delay in ("", ",extra_delay=1")
    ),
    "fdg+predict", "dgl",
)  # fmt: skip
"""Rows of the study of two machines."""
KEPT = ("network", "data", "batch", "updates", "every", "optimizer", "warmup", "threads")
"""Settings on which trainings depend that are kept."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """Settings of the measurement of times to a loss.

    Attributes:
        out: Folder of the record, of the trainings, and of times that were measured already.
        data_dir: Folder of the data, or its file, for data sets that read files.
        rows: Rows; methods with their own options, ``extra_delay``, ``codec`` and remedies.
            Rows of baselines that wait for all gradients have the updates of back-propagation.
        links: Links between the machines, as for `hocket plan`; ``none`` for no limit.
        scaled: Rows of Hocket for further machines; others than ``rows`` are not timed. Not
            given, all ``rows`` without a codec are.
        machines: Numbers of machines besides two, which are not there: the rows of ``scaled``
            are trained for them at the best rate for two, and seconds of an update are
            forecast by the planner; for two as well, to compare with what is timed.
        target: Test loss that a run reaches with the first evaluation from which it stays
            there.
        updates: Updates of each training.
        every: Updates between evaluations.
        rates: Learning rates that each row tries. While the best is the least or the largest,
            its half or double is tried.
        most_rates: Most rates that a row tries.
        thorough: Rows that try all rates and have all seeds, as back-propagation does; the
            others have the first of each. Not given, all rows are.
        warmup: Updates in which the rate rises to its value. It then falls to 0 as a cosine.
        seeds: Seeds of weights and batches. The first one chooses the rate, and is the one of
            further machines.
        batch: Samples of an update; a method that accumulates M gradients gets batch / M a
            tick.
        network: Name in the zoo, with options.
        data: Data set, with options.
        optimizer: An optimizer of torch.optim, without its rate.
        threads: PyTorch threads of each process.
        jobs: Trainings at a time.
        repetitions: Rounds in which every row has one turn, for each link.
        seconds: Length of a turn.
        only_train: Leave times and record for another call, on a quiet machine.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/target")
    data_dir: Path | None = None
    rows: Sequence[str] = ROWS
    links: Sequence[str] = ("none", "1Gbit,20ms", "100Mbit,20ms")
    scaled: Sequence[str] = ()
    machines: Sequence[int] = (3, 6)
    target: float = 1.7
    updates: int = 1000
    every: int = 25
    rates: Sequence[float] = (0.0005, 0.001)
    most_rates: int = 4
    thorough: Sequence[str] = ()
    warmup: int = 100
    seeds: Sequence[int] = (0, 1)
    batch: int = 64
    network: str = "gpt:depth=6,heads=6,width=384"
    data: str = "text:context=64"
    optimizer: str = "AdamW:betas=[0.9,0.99],weight_decay=0.1"
    threads: int = 1
    jobs: int = 2
    repetitions: int = 3
    seconds: float = 4
    only_train: bool = False

    def __post_init__(self) -> None:
        problems = link_problems(self.links)
        for row in (*self.rows, *self.scaled, *self.thorough):
            parse_row(row)
            if self.batch % (parts := accumulated(row)):
                problems.append(
                    f"{row!r} accumulates {parts} gradients; give a batch that is a multiple "
                    f"of it instead of {self.batch}"
                )
            if (name := Row.parse(row).name) == "independent":
                problems.append(f"{row!r} trains each network alone, and has no common loss")
            if name == "fdg-by-hand":
                problems.append(f"{row!r} trains on one batch only; give 'fdg'")
            if name in ("ddp", *REPLICATED) and self.batch % NODES:
                problems.append(
                    f"{row!r} divides the batch of {self.batch} by {NODES}; give a multiple"
                )
            if {"cut", "speeds"} & Row.parse(row).options.keys():
                problems.append(f"{row!r} names its cut, and all rows have one by their times")
        problems += [
            f"scaled has {row!r}; give rows of Hocket's methods"
            for row in self.scaled
            if as_method(Row.parse(row)) is None
        ]
        problems += [
            f"machines is {count}; give more than {NODES}, which are measured"
            for count in self.machines
            if count <= NODES
        ]
        problems += [
            f"thorough has {row!r}; give rows that are trained"
            for row in self.thorough
            if row not in (*self.rows, *self.scaled)
        ]
        if self.warmup >= self.updates:
            problems.append(f"warmup is {self.warmup}; give less than {self.updates} updates")
        check_settings(
            "cannot measure times to a loss",
            self,
            at_least={
                0: ("warmup",),
                1: ("updates", "every", "batch", "threads", "jobs", "repetitions"),
            },
            not_empty=("rows", "links", "rates", "seeds"),
            problems=problems,
        )


DEFAULTS = TargetSettings()


def measure_target(settings: TargetSettings = DEFAULTS) -> int:
    """Train every row to a loss, time its updates over every link, and write the record.

    Finished trainings and the times of a link are kept in ``out``; called again, the
    measurement goes on with what is missing. Times over a link need root.

    Returns:
        The exit code; 130 after a stop.

    Raises:
        OptionError: ``out`` has results of other settings.
        NodesError: This machine cannot provide two nodes.
        HocketError: A training or process failed.
    """
    measurement = TargetMeasurement(settings)
    parameters = measurement.work(BASE).parameter_count()
    record = Record.from_settings("target", settings, parameters=parameters)
    try:
        trained = measurement.train()
    except StoppedError as error:
        print(error, file=sys.stderr)
        return 130
    if not settings.only_train:
        record.with_rows(measurement.rows(trained)).write(settings.out)
    return 0


class TargetMeasurement:
    """The parts of the measurement, with what its folder has of them.

    Raises:
        OptionError: The folder has results of other settings.
    """

    def __init__(self, settings: TargetSettings) -> None:
        self._settings = settings
        self._results = KeptResults(settings.out)
        self._results.require_same({name: getattr(settings, name) for name in KEPT})
        # Times are of this code on this machine, and trainings of any.
        self._timed_by = {"source": source_digest(), "cpu": machine(settings.threads)["cpu"]}
        self._base = {
            "network": settings.network,
            "data": settings.data,
            "batch_size": settings.batch,
            "updates": settings.updates,
            "evaluate_every": settings.every,
            "optimizer": settings.optimizer,
            "warmup_updates": settings.warmup,
            "scheduler": f"CosineAnnealingLR:T_max={settings.updates - settings.warmup}",
            "scheduler_unit": "update",
            "threads": settings.threads,
        }
        if settings.data_dir is not None:
            self._base["data_dir"] = str(settings.data_dir)
        # Rows of methods that are trained and forecast for further machines.
        self._scaled = list(dict.fromkeys(settings.scaled)) or [
            row
            for row in dict.fromkeys(settings.rows)
            if (own := as_method(Row.parse(row))) and parse_method_row(own).codec == "none"
        ]

    def train(self) -> dict[int, dict[str, dict[str, Any]]]:
        """Train what has no result yet; return results by number of machines and by row.

        Raises:
            StoppedError: A signal stopped it.
            HocketError: A training failed.
        """
        settings = self._settings
        first, *others = settings.seeds
        # Cut for all numbers of machines first: it fails if there are fewer layers.
        trainings, *further = map(self.trainings, (NODES, *settings.machines))
        rows = list(dict.fromkeys([BASE, *map(trained_row, [*settings.rows, *self._scaled])]))
        chosen = {BASE, *map(trained_row, settings.thorough or rows)}
        thorough, fewer = ([r for r in rows if (r in chosen) is kind] for kind in (True, False))
        found = trainings.run(dict.fromkeys(fewer, settings.rates[:1]), first)
        found |= trainings.search(thorough, settings.rates, settings.most_rates, first)
        best = {row: best_rate(curves, settings.updates) for row, curves in found.items()}
        runs = {row: [curves[best[row]]] for row, curves in found.items()}

        # Other seeds and other numbers of machines have the best rates.
        for seed in others:
            again = trainings.run({row: [best[row]] for row in thorough}, seed)
            for row, curves in again.items():
                runs[row] += curves.values()
        trained = {NODES: {row: self._result(found[row], runs[row]) for row in rows}}
        scaled = {row: [best[row]] for row in map(trained_row, self._scaled) if row != BASE}
        for machines, of_machines in zip(settings.machines, further, strict=True):
            alone = of_machines.run(scaled, first)
            trained[machines] = {BASE: trained[NODES][BASE]} | {
                row: self._result(curves, [*curves.values()]) for row, curves in alone.items()
            }
        return trained

    def rows(self, trained: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of the record: those that are timed, and then those forecast.

        Args:
            trained: Results of the trainings, by number of machines and by row.
        """
        settings = self._settings
        times = [
            {"row": row, "link": link, "machines": len(found["peak_mib"]), **found}
            for link in settings.links
            for row, found in self._times(link).items()
        ]
        for machines in (NODES, *settings.machines):
            for found in self._forecasts(machines):
                times.append({"machines": machines, "forecast": True, **found})
        rows = []
        for found in times:
            row, own = found["row"], trained[max(NODES, found["machines"])]
            result = own[trained_row(row)]
            seconds = (
                None if result["updates"] is None else result["updates"] * found["update_s"]
            )
            names = {"row": Row.parse(row).label, "decoupled": is_method(row)}
            rows.append({**found, **names, **result, "seconds": seconds})
        return rows

    def cuts(self, machines: int) -> tuple[str, ...]:
        """Return the cut by measured times, which stays when the measurement goes on."""

        def measure() -> list[str]:
            return list(Balancer(self.work(BASE)).plan(range(machines), microbatches=1).cuts)

        return tuple(self._results.find(f"cuts-{machines}.json", {}, measure))

    def trainings(self, machines: int) -> Trainings:
        """Return the trainings for a number of machines."""
        folder = self._settings.out / "trainings" / f"{machines}-machines"
        return Trainings(folder, self._base, self.cuts(machines), self._settings.jobs)

    def work(self, row: str) -> RunWorkload:
        """Return the work of a tick of a row; times do not depend on its learning rate."""
        settings = self._settings
        optimizer = Named.parse(settings.optimizer).with_option("lr", min(settings.rates))
        own = {
            "method": BASE,
            "stages": 1,
            "batch_size": settings.batch // accumulated(row),
            "optimizer": str(optimizer),
            "seed": settings.seeds[0],
        }
        config = parse_config({**self._base, **own}, f"row {row!r}")
        return RunWorkload.of(config, stages=NODES, threads=settings.threads)

    def _result(self, curves: Mapping[float, Curve], runs: Sequence[Curve]) -> dict[str, Any]:
        """Return what is recorded of the trainings of a row.

        Args:
            curves: Curves of the first seed by learning rate.
            runs: The curve of each seed at the best rate.
        """
        settings = self._settings
        rate = best_rate(curves, settings.updates)
        losses = [final_loss(curve, settings.updates) for curve in runs]
        reached = [
            stays_below(curve, settings.target) if loss <= settings.target else None
            for curve, loss in zip(runs, losses, strict=True)
        ]
        counted = [updates for updates in reached if updates is not None]
        return {
            "learning_rate": rate,
            "at_edge": len(curves) > 1 and rate in (min(curves), max(curves)),
            "reached": reached,
            "updates": fmean(counted) if counted == reached else None,
            "final_loss": None if inf in losses else fmean(losses),
            "curve": list(runs[0]),
        }

    def _times(self, link: str) -> dict[str, Any]:
        """Return the times of rows over a link, measured once."""
        settings = self._settings
        rows = list(dict.fromkeys(settings.rows))
        turns: dict[str, Any] = {
            "repetitions": settings.repetitions,
            "seconds": settings.seconds,
        }

        def measure() -> dict[str, Any]:
            return time_over_link(link, [self._timed_row(row) for row in rows], **turns)

        asked = {"link": link, "rows": rows, **turns, **self._timed_by}
        timed: dict[str, Any] = self._results.find(
            f"times-{Named(link).slug}.json", asked, measure
        )
        return timed

    def _forecasts(self, machines: int) -> list[dict[str, Any]]:
        """Return forecasts for a number of machines over all links, made once."""
        settings = self._settings
        asked = {"links": list(settings.links), "rows": self._scaled, **self._timed_by}
        found: list[dict[str, Any]] = self._results.find(
            f"forecasts-{machines}.json",
            asked,
            lambda: forecast_updates(
                self._scaled, settings.links, self.cuts(machines), self.work
            ),
        )
        return found

    def _timed_row(self, row: str) -> TimedRow:
        work = self.work(row)
        baseline = build_baseline(row, work, Balancer(work))
        if isinstance(baseline, Decoupled) and baseline.replicas == 1:
            baseline = replace(baseline, plan=Plan(self.cuts(NODES)))
        return TimedRow(row, baseline, work)
