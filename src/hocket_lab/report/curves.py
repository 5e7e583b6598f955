"""Sections of a report with curves: loss and error, single batches, staleness and gradients."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from hocket_lab.report.groups import Group, Line
from hocket_lab.report.line_chart import Curve, line_chart
from hocket_lab.report.markup import Markup, element
from hocket_lab.report.reported_run import BatchMetrics, ReportedRun, Series
from hocket_lab.studies.pictures import AXES

MOST_POINTS = 120
"""Points of a curve over batches; more are averaged in intervals."""
MOST_EVALUATIONS = 400
"""Evaluations of a run that are drawn."""
METRIC_TITLES: Mapping[str, tuple[str, float]] = {
    "test_error": ("test error, %", 100.0),
    "test_loss": ("test loss", 1.0),
    "train_loss": ("training loss", 1.0),
}
"""Titles of metrics in charts, and factors of their values there."""
STAGE_METRICS: Sequence[tuple[str, str]] = (
    ("staleness", "staleness, updates"),
    ("cosine", "cosine of late and true gradient"),
    ("ratio", "norm of late over true gradient"),
)


def learning_curves(groups: Sequence[Group]) -> list[Markup]:
    """Draw loss and error against updates, samples and seconds."""
    return _with_points(
        line_chart(title, axis_title, _evaluations(groups, metric, axis, factor))
        for metric, (title, factor) in METRIC_TITLES.items()
        for axis, axis_title in AXES.items()
    )


def batch_losses(groups: Sequence[Group]) -> list[Markup]:
    """Draw the training loss of single batches, for long epochs and runs under way."""
    width = _interval(groups, lambda metrics: [metrics.loss])
    curves = _curves(groups, lambda run: bin_means(run.metrics.loss, width))
    return _with_points([line_chart("training loss of logged batches", "batch", curves)])


def stage_charts(groups: Sequence[Group]) -> list[Markup]:
    """Draw mean staleness and mean gradient error against the number of the stage."""
    return _with_points(
        line_chart(
            title,
            "stage",
            _curves(groups, partial(_by_stage, name)),
            markers=True,
            whole=True,
            log="",
        )
        for name, title in STAGE_METRICS
    )


def gradient_errors(groups: Sequence[Group]) -> list[Markup]:
    """Draw the cosine of late and true gradients of each stage against batches."""
    stages = sorted({k for g in groups for run in g.runs for k in run.metrics.cosine})
    width = _interval(groups, lambda metrics: list(metrics.cosine.values()))
    return _with_points(
        line_chart(
            f"cosine at stage {stage}",
            "batch",
            _curves(groups, partial(_cosines, stage, width)),
            log="",
        )
        for stage in stages
    )


def chart_grid(charts: Sequence[Markup]) -> Markup:
    """Put charts side by side, as many as fit."""
    return element("div", charts, class_="charts")


def bin_means(series: Series, width: int) -> Line:
    """Average points of whole x over intervals of a width; return the means by interval.

    >>> bin_means([(0, 1.0), (1, 3.0), (4, 5.0)], 2)
    {0: (0.5, 2.0), 2: (4.0, 5.0)}
    """
    bins: dict[int, list[tuple[float, float]]] = {}
    for x, y in series:
        bins.setdefault(int(x) // width, []).append((x, y))
    return {
        number: (fmean(x for x, _ in points), fmean(y for _, y in points))
        for number, points in sorted(bins.items())
    }


def _with_points(charts: Iterable[Markup | None]) -> list[Markup]:
    """Return the charts that have any points."""
    return [chart for chart in charts if chart is not None]


def _curves(groups: Sequence[Group], line: Callable[[ReportedRun], Line]) -> list[Curve]:
    """Return the curves of groups from a function that returns the line of a run."""
    return [Curve(g.number, g.label, [line(run) for run in g.runs]) for g in groups]


def _interval(
    groups: Sequence[Group], chosen: Callable[[BatchMetrics], Sequence[Series]]
) -> int:
    """Return the length of the intervals that all runs are averaged over."""
    series = [s for g in groups for run in g.runs for s in chosen(run.metrics)]
    last = max((x for points in series for x, _ in points), default=0.0)
    return int(last) // MOST_POINTS + 1


def _cosines(stage: int, width: int, run: ReportedRun) -> Line:
    """Return the cosines of a stage over intervals; none if only the mean of a run is known."""
    series = run.metrics.cosine.get(stage, ())
    return bin_means(series, width) if len(series) > 1 else {}


def _evaluations(groups: Sequence[Group], metric: str, axis: str, factor: float) -> list[Curve]:
    """Return the curves of a metric over evaluations, of which long runs show every n-th."""

    def line(run: ReportedRun) -> Line:
        return {
            point.updates: (float(getattr(point, axis)), value * factor)
            for point in run.curve
            if (value := point.value(metric)) is not None
        }

    whole = _curves(groups, line)
    longest = max((len(points) for curve in whole for points in curve.runs), default=0)
    step = max(1, math.ceil(longest / MOST_EVALUATIONS))
    return [
        replace(c, runs=[dict(list(points.items())[step - 1 :: step]) for points in c.runs])
        for c in whole
    ]


def _by_stage(name: str, run: ReportedRun) -> Line:
    """Return the mean of a metric over the logged batches of each stage.

    A run that has ended has the staleness of the table, over all batches of its last epoch.
    """
    means = {k: fmean(y for _, y in points) for k, points in getattr(run.metrics, name).items()}
    if name == "staleness":
        means |= {k: s.staleness for k, s in enumerate(run.stages) if s.staleness is not None}
    return {k: (float(k), mean) for k, mean in sorted(means.items())}
