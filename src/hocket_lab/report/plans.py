"""Section of a report that compares plans with the runs that followed them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.errors import HocketError
from hocket.files import read_json
from hocket.methods.simulated.delays import parse_extra_delay
from hocket.partition.plan import Plan
from hocket.runs.read_folder import DAMAGED
from hocket_lab.planner.simulate import StageTimes
from hocket_lab.report.groups import Group
from hocket_lab.report.markup import Markup, element
from hocket_lab.report.reported_run import ReportedRun
from hocket_lab.report.tables import Cell, Row, group_cell, number, sortable_table


def plan_comparison(groups: Sequence[Group]) -> list[Markup]:
    """Compare forecasts with results, for the runs that followed the plan of a file."""
    rows: list[Row] = []
    notes: list[str] = []
    for group, run in ((each, run) for each in groups for run in each.runs):
        file = Path(run.config.plan)
        if file.suffix != ".json":
            continue
        try:
            rows += [
                [
                    group_cell(group),
                    Cell(run.name, run.name),
                    quantity,
                    number(planned),
                    number(measured),
                    number(measured / planned if measured is not None and planned else None, 3),
                ]
                for quantity, planned, measured in _compare(run, _read_forecast(file, run))
            ]
        except (HocketError, OSError, *DAMAGED) as error:
            notes.append(f"{run.name}: {error}")
    parts = [element("p", note, class_="note") for note in notes]
    if rows:
        columns = [
            "settings", "run", "quantity", "forecast", "measured", "measured over forecast",
        ]  # fmt: skip
        parts.insert(0, sortable_table(columns, rows))
    return parts


def _read_forecast(file: Path, run: ReportedRun) -> Mapping[str, Any]:
    """Return the forecast of a plan for a run.

    Raises:
        ValueError: The plan has none for its method and its stages, or other cuts.
    """
    cuts = Plan.read(file).cuts
    if run.cuts and cuts != tuple(run.cuts):
        raise ValueError(
            f"the plan {str(file)!r} has the cuts {', '.join(cuts)}, and the run has "
            f"{', '.join(run.cuts)}; the file was written anew since"
        )
    for forecast in read_json(file).get("forecasts", ()):
        same_method = forecast["method"] == run.config.method
        if same_method and tuple(forecast["cuts"]) == cuts and _same_delay(forecast, run):
            return dict(forecast)
    raise ValueError(
        f"the plan {str(file)!r} has no forecast of {run.config.method!r} with its cuts"
    )


def _same_delay(forecast: Mapping[str, Any], run: ReportedRun) -> bool:
    """Return True if a forecast is for the extra delay of the run."""
    edges = run.config.stages - 1
    planned = list(forecast["extra_delay"]) or [0] * edges
    given = parse_extra_delay(run.config.extra_delay)
    return planned == ([given] * edges if isinstance(given, int) else given)


def _compare(
    run: ReportedRun, forecast: Mapping[str, Any]
) -> Iterator[tuple[str, float, float | None]]:
    """Yield time of a batch, work of stages and staleness, forecast and measured if known."""
    last = run.last
    tick_ms = forecast["tick_s"] * 1e3
    measured_ms = last.seconds / last.batches * 1e3 if last and last.batches else None
    yield "time of a batch, ms", tick_ms, measured_ms
    for k, (times, staleness) in enumerate(
        zip(forecast["times"], forecast["staleness"], strict=True)
    ):
        stage = run.stages[k] if k < len(run.stages) else None
        work_ms = StageTimes(**times).total_s * 1e3
        busy = stage.busy if stage else None
        busy_ms = busy * measured_ms if busy is not None and measured_ms else None
        yield f"stage {k}: computation of a batch, ms", work_ms, busy_ms
        yield f"stage {k}: staleness, updates", staleness, stage.staleness if stage else None
