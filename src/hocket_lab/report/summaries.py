"""Sections of a report with tables: results, settings side by side, stages, and runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from statistics import fmean
from typing import TypeAlias

from hocket.runs.summary import StageSummary
from hocket_lab.report.groups import Group, Setting
from hocket_lab.report.line_chart import line_sample
from hocket_lab.report.markup import Markup, element
from hocket_lab.report.reported_run import ReportedRun
from hocket_lab.report.tables import (
    Cell,
    Row,
    fraction_bar,
    group_cell,
    number,
    sortable_table,
    spread,
)

Measure: TypeAlias = Callable[[ReportedRun], float | None]
"""Returns a number of a run; None if it is not known."""
STATES = ("finished", "interrupted", "diverged", "failed", "unfinished")


def sortable_results(groups: Sequence[Group]) -> Markup:
    """Build the table of groups: means and standard deviations over their runs."""
    measures = _measures(groups)
    rows = [[*_result(group), *_measured(measures, group.runs)] for group in groups]
    return sortable_table(["settings", "runs", *measures], rows)


def runs_table(groups: Sequence[Group]) -> Markup:
    """Build the table of all runs."""
    measures = _measures(groups)
    rows = [
        [*_run(group, run), *_measured(measures, [run])]
        for group in groups
        for run in group.runs
    ]
    return sortable_table(["run", "settings", "seed", "state", *measures], rows)


def settings_table(groups: Sequence[Group], settings: Sequence[Setting]) -> Markup:
    """Build the table of settings, with a column for each group."""
    heads = [element("th", group_cell(group).content, scope="col") for group in groups]
    rows = [
        element(
            "tr",
            element("th", setting.name.replace("_", " "), scope="row"),
            [element("td", value) for value in setting.values[: len(groups)]],
            class_="fact" if not setting.chosen else None,
        )
        for setting in settings
    ]
    table = element(
        "table",
        element("thead", element("tr", element("th", "setting", scope="col"), heads)),
        element("tbody", rows),
        class_="settings",
    )
    return element("div", table, class_="scroll", tabindex=0)


def stages_table(groups: Sequence[Group]) -> Markup | None:
    """Build the table of stages, the means over the runs; None if no run has ended."""
    columns = [
        "settings", "stage", "busy, sending, waiting", "busy, %", "sending, %", "waiting, %",
        "peak memory, MiB", "sent, MiB", "delay, ticks", "staleness, updates", "parameters",
        "auxiliary parameters",
    ]  # fmt: skip
    rows = [
        _stage(group, k, [run.stages[k] for run in group.runs if k < len(run.stages)])
        for group in groups
        for k in range(max(len(run.stages) for run in group.runs))
    ]
    return sortable_table(columns, rows) if rows else None


def _measures(groups: Sequence[Group]) -> dict[str, Measure]:
    """Return the measures that several tables have, by the heads of their columns."""
    runs = [run for group in groups for run in group.runs]
    averages = any(run.averaged_loss is not None for run in runs)
    skips = any(run.last is not None and run.last.skipped for run in runs)
    return {
        **MEASURES,
        **(AVERAGED_MEASURES if averages else {}),
        **(SKIPPED_MEASURES if skips else {}),
    }


def _measured(measures: Mapping[str, Measure], runs: Sequence[ReportedRun]) -> list[Cell]:
    """Return the cells of the measures of runs."""
    return [
        spread([measure(run) for run in runs], 100 if head.endswith("%") else 1)
        for head, measure in measures.items()
    ]


def _last_value(metric: str, run: ReportedRun) -> float | None:
    if run.state == "diverged":
        return math.inf
    return None if run.last is None else run.last.value(metric)


def _peak_mib(run: ReportedRun) -> float | None:
    return max((stage.peak_mib for stage in run.stages), default=None)


def _last_training_loss(run: ReportedRun) -> float | None:
    """Return the training loss of the last epoch, or of the last logged batch before one."""
    epochs = [point.train_loss for point in run.curve if point.train_loss is not None]
    if epochs:
        return epochs[-1]
    return run.metrics.loss[-1][1] if run.metrics.loss else None


def _result(group: Group) -> Row:
    states = [run.state for run in group.runs]
    counts = [f"{states.count(s)} {s}" for s in STATES if s in states and s != "finished"]
    runs = f"{len(states)}" + (f" ({', '.join(counts)})" if counts else "")
    return [group_cell(group), Cell(runs, len(states))]


def _run(group: Group, run: ReportedRun) -> Row:
    state = element("span", run.state, class_=f"state {run.state}", title=run.message or None)
    return [run.name, group_cell(group), number(run.config.seed), Cell(state, run.state)]


def _stage(group: Group, k: int, stages: Sequence[StageSummary]) -> Row:
    """Return the row of a stage of a group, from its results in the runs of the group."""
    busy, sending, waiting = (
        _mean([getattr(stage, name) for stage in stages])
        for name in ("busy", "communication", "waiting")
    )
    parts = {"busy": busy, "send": sending, "wait": waiting}
    bar = fraction_bar([(name, part) for name, part in parts.items() if part is not None])
    first = stages[0]
    return [
        # The sample of the line alone names the group again, in any order.
        group_cell(group) if k == 0 else Cell(line_sample(group.number), str(group.number)),
        number(k),
        Cell(bar, busy),
        *(number(part and part * 100, 3) for part in parts.values()),
        spread([stage.peak_mib for stage in stages]),
        spread([stage.sent_mib for stage in stages]),
        number(first.delay),
        spread([stage.staleness for stage in stages]),
        number(first.parameters, 7),
        number(first.extra_parameters, 7),
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are known; None without one."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


MEASURES: Mapping[str, Measure] = {
    "test error, %": partial(_last_value, "test_error"),
    "test loss": partial(_last_value, "test_loss"),
    "training loss": _last_training_loss,
    "updates": partial(_last_value, "updates"),
    "seconds": partial(_last_value, "seconds"),
    "samples/s": attrgetter("samples_per_s"),
    "peak memory, MiB": _peak_mib,
}
"""Measures by the heads of their columns."""
AVERAGED_MEASURES: Mapping[str, Measure] = {
    "averaged weights: test error, %": attrgetter("averaged_error"),
    "averaged weights: test loss": attrgetter("averaged_loss"),
}
"""Measures of `--average-weights`, shown where a run has some."""
SKIPPED_MEASURES: Mapping[str, Measure] = {"batches skipped": partial(_last_value, "skipped")}
"""Measures of `--on-nan`, shown where a run has skipped a batch."""
