"""Learning rates of a study: its metric at each of them, from all runs of its record."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hocket_lab.report.curves import METRIC_TITLES
from hocket_lab.report.groups import Group, Line
from hocket_lab.report.line_chart import Curve, line_chart, line_sample
from hocket_lab.report.markup import Child, Markup
from hocket_lab.studies.record import SweepRecord


@dataclass(frozen=True)
class ReportedStudy:
    """Study in a report.

    Attributes:
        folder: Its folder, resolved.
        name: Its name.
        title: Title of the metric that chooses the rates.
        rows: For each row with several rates a curve, and the folders of its runs.
        diverged: Number of runs of these rows that diverged.
    """

    folder: Path
    name: str
    title: str
    rows: Sequence[tuple[Curve, Collection[Path]]]
    diverged: int


def read_study(record: SweepRecord) -> ReportedStudy:
    """Read the last values of all runs of the rows that have several learning rates.

    Raises:
        LookupError, TypeError, ValueError, ArithmeticError: The record is damaged.
    """
    folder, settings = record.folder.resolve(), record.values["settings"]
    rows = [row for row in record.rows if len(row.get("sweep", ())) > 1]
    metric = settings["select"]
    title, factor = METRIC_TITLES[metric]
    found = [
        (
            Curve(number, row["row"], _seeds(row, metric, factor), _means(row, factor)),
            [folder / run["folder"] for run in row["runs"]],
        )
        for number, row in enumerate(rows)
    ]
    diverged = sum(run["state"] == "diverged" for row in rows for run in row["runs"])
    return ReportedStudy(folder, str(settings["name"]), title, found, diverged)


def rate_charts(studies: Sequence[ReportedStudy], groups: Sequence[Group]) -> list[Markup]:
    """Draw the last values of studies against the learning rate, in the colours of groups.

    A row without a best rate is in no group, and has another colour.
    """
    numbers = {run.folder.resolve(): group.number for group in groups for run in group.runs}
    charts = []
    for study in studies:
        curves = []
        for other, (curve, folders) in enumerate(study.rows, len(groups)):
            shown = (numbers[folder] for folder in folders if folder in numbers)
            curves.append(replace(curve, number=next(shown, other)))
        note: list[Child] = ["Points are runs. Lines are the means that choose the best rate. "]
        if study.diverged:
            runs = f"{study.diverged} diverged run{'s' if study.diverged > 1 else ''}"
            note.append(f"Without {runs}, and the means at their rates. ")
        for curve in curves:
            if curve.number >= len(groups):  # which the legend of the page does not have
                note += [line_sample(curve.number), f" {curve.label}: no best rate. "]
        name = f"{study.name}: " if len(studies) > 1 else ""
        title = f"{name}last {study.title}"
        chart = line_chart(title, "learning rate", curves, markers=True, log="xy", note=note)
        charts += [chart] if chart is not None else []
    return charts


def _seeds(row: dict[str, Any], metric: str, factor: float) -> list[Line]:
    """Return the last values of the runs of each seed, without those that diverged.

    If the sweep held examples out, the runs that did not are left out, too, as they were
    evaluated on other examples.
    """
    seeds: dict[int, dict[float, tuple[float, float]]] = {}
    held_out = max(run.get("hold_out") or 0.0 for run in row["runs"])
    for run in row["runs"]:
        if run["state"] == "finished" and (run.get("hold_out") or 0.0) == held_out:
            rate = float(run["learning_rate"])
            value = float(run["curve"][-1][metric]) * factor
            seeds.setdefault(run["seed"], {})[rate] = (rate, value)
    return list(seeds.values())


def _means(row: dict[str, Any], factor: float) -> Line:
    """Return the means that choose the best rate; none where a run diverged or is missing."""
    tried = ((float(t["learning_rate"]), t["mean"]) for t in row["sweep"])
    means = {rate: float(mean) * factor for rate, mean in tried if mean is not None}
    return {rate: (rate, mean) for rate, mean in sorted(means.items()) if math.isfinite(mean)}
