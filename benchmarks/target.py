"""Time to a test loss on two nodes over links: updates to it, times seconds of an update."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.balance import Balancer
from benchmarks.harness.kept_results import KeptResults
from benchmarks.harness.link_times import (
    NODES,
    TimedRow,
    link_problems,
    parse_link,
    time_over_link,
)
from benchmarks.harness.real_run import beside_product, run_training
from benchmarks.harness.record import Record
from benchmarks.harness.run_workload import RunWorkload
from benchmarks.harness.settings import check_settings
from benchmarks.harness.updates_to_target import StoppedError, Trainings, shorten_text
from benchmarks.harness.workload import torch_threads
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.row import Row
from benchmarks.peers.rows import (
    BASE,
    LOCAL,
    accumulated,
    build_baseline,
    is_method,
    parse_row,
    trained_row,
)
from hocket.errors import OptionError
from hocket.options import Named
from hocket.partition import Plan
from hocket.partition.costs.device import Device
from hocket.runs.config import parse_config
from hocket_lab.planner.predict import predict_all
from hocket_lab.planner.rehearsals import Candidate

ROWS = (
    "bp", "bp-all", "ddp", "1f1b:microbatches=4", "hocket-1f1b:accumulate=4",
    "local-sgd:steps=16", "diloco:steps=4", "diloco:steps=16",
    "fdg", "adl:accumulate=4", "pipedream-2bw:accumulate=4",
    "paci:accumulate=4", "paci:accumulate=4+predict", "paci:accumulate=4,codec=int8+predict",
    "dgl", "dgl:codec=int8",
)  # fmt: skip
"""Rows of the study in docs/results.md."""
KEPT = (
    "network", "data", "characters", "batch", "updates", "every", "optimizer", "warmup", "seed",
    "threads",
)  # fmt: skip
"""Settings on which trainings depend that are kept."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """Settings of the measurement of times to a loss.

    Attributes:
        out: Folder of the record, of the trainings, and of times that were measured already.
        data_dir: Folder of the data, or its file, for data sets that read files.
        rows: Rows; methods with their own options, ``codec`` and remedies. The extra
            delays that hide a link are added by the planner. Rows of baselines that wait for
            all gradients have the updates of back-propagation.
        links: Links between the nodes, as for `hocket plan`; ``none`` for no limit.
        target: Test loss to reach.
        updates: Updates of each training.
        every: Updates between evaluations.
        rates: Learning rates, of which each row takes its best.
        warmup: Updates in which the rate rises to its value, linearly, from a tenth.
        seed: Seed of weights and batches.
        batch: Samples of an update; a method that accumulates M gradients gets batch / M a
            tick.
        network: Name in the zoo, with options.
        data: Data set, with options.
        characters: Characters of a text that are used, the test's tenth among them; None for
            all, and for data that are no text.
        optimizer: An optimizer of torch.optim, without its rate.
        threads: PyTorch threads of each process.
        jobs: Trainings at a time.
        repetitions: Rounds in which every row has one turn, for each link.
        seconds: Length of a turn.
        confirm: Rows of the record, with their extra delays, that are run over the last link
            to the target.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/target")
    data_dir: Path | None = None
    rows: Sequence[str] = ROWS
    links: Sequence[str] = ("none", "1Gbit,20ms", "100Mbit,20ms")
    target: float = 2.4
    updates: int = 150
    every: int = 10
    rates: Sequence[float] = (0.0005, 0.001)
    warmup: int = 30
    seed: int = 0
    batch: int = 16
    network: str = "gpt:depth=6,heads=6,width=384"
    data: str = "text:context=64"
    characters: int | None = 100_000
    optimizer: str = "AdamW:betas=[0.9,0.99],weight_decay=0.1"
    threads: int = 1
    jobs: int = 2
    repetitions: int = 3
    seconds: float = 4
    confirm: Sequence[str] = ()

    def __post_init__(self) -> None:
        problems = link_problems(self.links)
        for row in self.rows:
            parse_row(row)
            if self.batch % (parts := accumulated(row)):
                problems.append(
                    f"{row!r} accumulates {parts} gradients; give a batch that is a multiple "
                    f"of it instead of {self.batch}"
                )
            if "extra_delay" in Row.parse(row).options:
                problems.append(f"{row!r} has an extra delay, which the planner chooses")
            if (name := Row.parse(row).name) == "independent":
                problems.append(f"{row!r} trains each network alone, and has no common loss")
            if name in ("ddp", *LOCAL) and self.batch % NODES:
                problems.append(
                    f"{row!r} divides the batch of {self.batch} by {NODES}; give a multiple"
                )
            if {"cut", "speeds"} & Row.parse(row).options.keys():
                problems.append(f"{row!r} names its cut, and all rows have one by their times")
        check_settings(
            "cannot measure times to a loss",
            self,
            at_least={
                0: ("warmup",),
                1: ("updates", "every", "batch", "threads", "jobs", "repetitions"),
            },
            not_empty=("rows", "links", "rates"),
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
        record = record.with_rows(measurement.rows())
    except StoppedError as error:
        print(error, file=sys.stderr)
        return 130
    record.write(settings.out)
    for row in settings.confirm:
        measurement.confirm(row, record.rows)
        record.write(settings.out)
    return 0


class TargetMeasurement:
    """The parts of the measurement, with what its folder has of them.

    Args:
        settings: The settings.

    Raises:
        OptionError: The folder has results of other settings.
    """

    def __init__(self, settings: TargetSettings) -> None:
        self._settings = settings
        self._results = KeptResults(settings.out)
        self._results.require_same({name: getattr(settings, name) for name in KEPT})
        self._base = {
            "network": settings.network,
            "data": settings.data,
            "data_dir": shorten_text(settings.data_dir, settings.characters, settings.out),
            "batch_size": settings.batch,
            "updates": settings.updates,
            "evaluate_every": settings.every,
            "optimizer": settings.optimizer,
            "threads": settings.threads,
        }
        if settings.warmup:
            warmup = f"LinearLR:start_factor=0.1,total_iters={settings.warmup}"
            self._base |= {"scheduler": warmup, "scheduler_unit": "update"}
        if settings.data_dir is None:
            del self._base["data_dir"]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the record: every row, and its extra delays, over every link."""
        settings = self._settings
        over = {link: self._with_delays(link) for link in settings.links}
        needed = [BASE, *(trained_row(row) for rows in over.values() for row in rows)]
        trained = self.trainings.run(list(dict.fromkeys(needed)))
        found = []
        for link, rows in over.items():
            times = self._times(link, rows)
            of_link = [
                self._row(row, link, times[row], trained[trained_row(row)]) for row in rows
            ]
            best = min(
                (row["seconds"] for row in of_link if row["synchronous"] and row["seconds"]),
                default=None,
            )
            for row in of_link:
                known = best is not None and row["seconds"] is not None
                row["beside_best"] = row["seconds"] / best if known else None
            found += of_link
        return found

    def confirm(self, row: str, rows: Sequence[dict[str, Any]]) -> None:
        """Run a row over the last link for its updates, and add the result to its row.

        Args:
            row: The row, with its extra delay.
            rows: The rows of the record.

        Raises:
            OptionError: No such row has reached the target over that link.
            HocketError: A process failed.
        """
        link = self._settings.links[-1]
        label = Row.parse(row).label
        chosen = [one for one in rows if one["row"] == label and one["link"] == link]
        if not chosen or chosen[0]["updates"] is None:
            raise OptionError(
                f"cannot confirm {row!r}: no row of this name has reached the target over "
                f"{link}"
            )
        (one,) = chosen
        name, asked = _real_run(row, one)
        timed = self._timed_row(row, one["learning_rate"])
        ran = self._results.find(name, asked, lambda: run_training(timed, link, one["updates"]))
        one["confirmed"] = beside_product(ran, one["seconds"])

    @cached_property
    def trainings(self) -> Trainings:
        """The trainings, with the cut that all rows of methods have."""
        settings = self._settings
        return Trainings(
            folder=settings.out / "trainings",
            base=self._base,
            cuts=self.cuts,
            rates=settings.rates,
            seed=settings.seed,
            target=settings.target,
            jobs=settings.jobs,
        )

    @cached_property
    def cuts(self) -> tuple[str, ...]:
        """Cut of the network by measured times, which stays when the measurement goes on."""
        return tuple(self._results.find("cuts.json", {}, self._balance))

    def work(self, row: str, rate: float | None = None) -> RunWorkload:
        """Return the work of a tick of a row.

        Args:
            row: The row.
            rate: Learning rate; the least one, for times that do not depend on it, if None.
        """
        settings = self._settings
        rate = min(settings.rates) if rate is None else rate
        optimizer = Named.parse(settings.optimizer).with_option("lr", rate)
        own = {
            "method": BASE,
            "stages": 1,
            "batch_size": settings.batch // accumulated(row),
            "optimizer": str(optimizer),
            "seed": settings.seed,
        }
        config = parse_config({**self._base, **own}, f"row {row!r}")
        return RunWorkload.of(config, stages=NODES, threads=settings.threads)

    def _balance(self) -> list[str]:
        plan = Balancer(self.work(BASE)).plan(range(NODES), microbatches=1)
        return list(plan.cuts)

    def _with_delays(self, link: str) -> list[str]:
        """Return all rows, and methods again with extra delays that hide a link."""
        rows = list(dict.fromkeys(self._settings.rows))
        methods = [row for row in rows if is_method(row)]
        asked = {"link": link, "methods": methods}
        name = f"delays-{Named(link).slug}.json"
        delays = self._results.find(name, asked, lambda: self._hiding_delays(link, methods))
        pairs = zip(methods, delays, strict=True)
        hidden = {
            row: str(Row.parse(row).with_option("extra_delay", delay))
            for row, delay in pairs
            if delay
        }
        return [one for row in rows for one in (row, hidden.get(row)) if one is not None]

    def _hiding_delays(self, link: str, methods: Sequence[str]) -> list[int]:
        """Return the extra delay of each method that hides a link, as the planner finds it.

        Codecs are not forecast: a row with one has the delay of the same row without it.
        """
        if (known := parse_link(link)) is None:
            return [0] * len(methods)
        names = {row: self.trainings.options(row)["method"] for row in methods}
        ticks = {name: accumulated(name) for name in names.values()}
        delays: dict[str, int] = {}
        devices = (Device(link=known),) * NODES
        with torch_threads(self._settings.threads):
            for count in set(ticks.values()):  # what is rehearsed together has equal batches
                together = [name for name in ticks if ticks[name] == count]
                forecasts = predict_all(
                    self.work(together[0]).network_and_batch,
                    [Candidate(name, self.cuts, devices=devices) for name in together],
                    contended=True,
                )
                for name, forecast in zip(together, forecasts, strict=True):
                    delays[name] = max(forecast.hiding_delay, default=0)
        return [delays[names[row]] for row in methods]

    def _times(self, link: str, rows: Sequence[str]) -> dict[str, Any]:
        """Return the times of rows over a link, measured once."""
        settings = self._settings
        asked: dict[str, Any] = {"link": link, "rows": list(rows)}
        asked |= {"repetitions": settings.repetitions, "seconds": settings.seconds}
        timed: dict[str, Any] = self._results.find(
            f"times-{Named(link).slug}.json",
            asked,
            lambda: time_over_link(
                link,
                [self._timed_row(row) for row in rows],
                repetitions=settings.repetitions,
                seconds=settings.seconds,
            ),
        )
        return timed

    def _timed_row(self, row: str, rate: float | None = None) -> TimedRow:
        work = self.work(row, rate)
        baseline = build_baseline(row, work, Balancer(work))
        if isinstance(baseline, Decoupled):
            baseline = replace(baseline, plan=Plan(self.cuts))
        return TimedRow(row, baseline, work)

    def _row(
        self, row: str, link: str, times: Mapping[str, float], trained: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a row of the record."""
        updates = trained["updates"]
        values = {
            "row": Row.parse(row).label,
            "link": link,
            "synchronous": trained_row(row) == BASE,
            **trained,
            **times,
            "seconds": None if updates is None else updates * times["update_s"],
        }
        ran = self._results.get(*_real_run(row, values))
        confirmed = None if ran is None else beside_product(ran, values["seconds"])
        return values | {"confirmed": confirmed}


def _real_run(row: str, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the file of a real run of a row, and all that its result depends on.

    Args:
        row: The row, with its extra delay.
        values: Its row of the record.
    """
    name = f"confirmed-{Row.parse(row).slug}-{Named(values['link']).slug}.json"
    return name, {key: values[key] for key in ("row", "link", "learning_rate", "updates")}
