"""Rows of the record of a study, as trainings in processes."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.balance import Balancer
from benchmarks.harness.link_times import TimedRow
from benchmarks.harness.run_workload import RunWorkload
from benchmarks.harness.updates_to_target import points
from benchmarks.peers import Baseline
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.plain import PlainLoop
from benchmarks.peers.rows import BASE, build_baseline
from hocket.codecs import parse_codec
from hocket.errors import OptionError
from hocket.partition import Plan
from hocket.runs.build import build_plan, build_run_method
from hocket.runs.config import RunConfig
from hocket_lab.studies.record import SweepRecord
from hocket_lab.studies.rows import Row
from hocket_lab.studies.selection import is_chosen
from hocket_lab.studies.target import Target


@dataclass(frozen=True, kw_only=True)
class StudiedRow:
    """A row of a study at its best learning rate, or a baseline that updates as one of them.

    Attributes:
        name: Its label.
        config: The run of its first seed.
        learning_rate: The rate; None for the optimizer's default.
        at_edge: True if no rate was tried on one side of it.
        to_target: Mean and deviation of the updates to the target, over the seeds; None if not
            all of them have reached it.
        own_updates: Updates to the target of the first seed; None if it has not reached it.
        curve: Updates and test loss of the first seed.
        baseline: Name of a baseline that replaces the method of the run; None for the method.
    """

    name: str
    config: RunConfig
    learning_rate: float | None
    at_edge: bool
    to_target: Mapping[str, Any] | None
    own_updates: int | None
    curve: Sequence[Mapping[str, Any]]
    baseline: str | None = None

    @property
    def is_base(self) -> bool:
        """True for back-propagation of the whole network."""
        chosen = (self.config.method, self.config.stages, self.baseline)
        return chosen == (BASE, 1, None)

    def timed(self, processes: int) -> TimedRow:
        """Return its training with a process for each stage.

        Args:
            processes: Number of processes of a baseline.

        Raises:
            OptionError: The run has no cuts, or no plain loop can follow it, or the batch
                cannot be shared.
        """
        work = RunWorkload.of(self.config, stages=processes, threads=self.config.threads)
        return TimedRow(self.name, self._way(work), work)

    def _way(self, work: RunWorkload) -> Baseline:
        """Return the way in which it trains.

        Raises:
            OptionError: The run has no cuts, or the batch cannot be shared.
        """
        config = self.config
        if self.baseline is not None:
            return build_baseline(self.baseline, work, Balancer(work))
        if self.is_base:
            return PlainLoop(1, config.threads)
        if not isinstance(plan := build_plan(config), Plan):
            raise OptionError(
                f"the row {self.name!r} is cut by what is measured when it begins; name its "
                "cuts in the study, such as plan = 'block2'"
            )
        codec = parse_codec(config.codec)
        return Decoupled(build_run_method(config), codec, config.threads, plan)


def read_study(folder: Path, data_dir: Path | None) -> list[StudiedRow]:
    """Read the rows of the record of a study.

    Args:
        folder: Its folder.
        data_dir: Place of its data; None for data without files.

    Raises:
        RunFolderError: There is no record.
        OptionError: The study is not finished, or its target is no test loss.
    """
    record = SweepRecord.read(folder)
    settings = record.values["settings"]
    target = Target.parse(settings["target"] or "none given")
    if target.metric != "test_loss":
        raise OptionError(f"the target of {folder} is {target}; use a study of the test loss")
    if unfinished := [row["row"] for row in record.rows if row["state"] == "incomplete"]:
        raise OptionError(
            f"the study {folder} is not finished (missing: {'; '.join(unfinished)}); finish it "
            "with hocket sweep"
        )
    first = settings["seeds"][0]
    return [_read_row(row, first, target, data_dir) for row in record.rows]


def with_baselines(rows: Sequence[StudiedRow], names: Sequence[str]) -> list[StudiedRow]:
    """Return rows and baselines; these have the updates of back-propagation.

    Args:
        rows: Rows of a study.
        names: Names of baselines that wait for the gradient of the whole batch.

    Raises:
        OptionError: There are baselines, and the study has no row of back-propagation.
    """
    base = next((row for row in rows if row.is_base), None)
    if not names:
        return list(rows)
    if base is None:
        raise OptionError(
            f"{', '.join(names)} would have the updates of {BASE} on one stage, which the "
            "study does not have; add it there, or give no baselines"
        )
    # A baseline updates as back-propagation does, unless it has no common loss.
    apart: dict[str, Any] = {"to_target": None, "own_updates": None, "curve": ()}
    found = list(rows)
    for name in names:
        changes = apart if name == "independent" else {}
        found.append(dataclasses.replace(base, name=name, baseline=name, **changes))
    return found


def _read_row(
    row: Mapping[str, Any], seed: int, target: Target, data_dir: Path | None
) -> StudiedRow:
    """Return a row of a record of a study.

    Args:
        row: The row.
        seed: The seed of the run that is taken.
        target: The target.
        data_dir: Place of the data.
    """
    rate = row["learning_rate"]
    options = {name: value for name, value in row["options"].items() if name != "data_dir"}
    if data_dir is not None:
        options["data_dir"] = os.fspath(data_dir.absolute())
    run = next(run for run in row["runs"] if is_chosen(row, run) and run["seed"] == seed)
    curve = points(run["curve"])
    return StudiedRow(
        name=row["row"],
        config=Row(row["row"], options, ()).run(rate, seed).config,
        learning_rate=rate,
        at_edge=row["at_edge"],
        to_target=row["to_target"]["updates"],
        own_updates=next(
            (p["updates"] for p in curve if target.is_reached(p["test_loss"])), None
        ),
        curve=curve,
    )
