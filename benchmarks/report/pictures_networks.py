"""Pictures of trainings of networks, and of forecasts."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.record import Record
from benchmarks.report.figures import label_axes, label_rows, line_style, new_figure, save_svg
from benchmarks.report.tables_networks import GOALS, memory_ratios


def accuracy_picture(record: Record, path: Path) -> Path:
    """Draw training loss and test error over epochs: lines are means, points single seeds."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    labels = list(dict.fromkeys(row["row"] for row in record.rows))
    for number, label in enumerate(labels):
        rows = [row for row in record.rows if row["row"] == label and row["failure"] is None]
        _draw_curve(left, rows, "train_loss", 1, number, label)
        _draw_curve(right, rows, "test_error", 100, number, label)
    left.set_ylabel("training loss")
    right.set_ylabel("test error, %")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.set_xticks(range(1, record.settings["epochs"] + 1))
        axes.grid(alpha=0.3)
    right.legend(fontsize="small")
    return save_svg(figure, path)


def curves_picture(record: Record, path: Path) -> Path:
    """Draw the training loss over updates, for each number of stages."""
    settings = record.settings
    figure = Figure(figsize=(5 * len(settings["stages"]), 4.2), layout="constrained")
    grid = figure.subplots(1, len(settings["stages"]), sharey=True, squeeze=False)
    for axes, count in zip(grid[0], settings["stages"], strict=True):
        shown = [row for row in record.rows if row["stages"] in (1, count)]
        for number, label in enumerate(dict.fromkeys(row["row"] for row in shown)):
            mine = [row["train_losses"] for row in shown if row["row"] == label]
            for losses in mine:
                at = _point_centres(losses, settings["every"])
                axes.plot(at, losses, color=f"C{number}", alpha=0.25)
            # As far as all seeds came.
            means = [fmean(losses) for losses in zip(*mine, strict=False)]
            at = _point_centres(means, settings["every"])
            axes.plot(at, means, **line_style(number), label=label)
        axes.set_title(f"{count} stages")
        axes.set_xlabel("update")
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("training loss, mean of {every} updates".format(**settings))
    grid[0][-1].legend(fontsize="small")
    return save_svg(figure, path)


def plan_picture(record: Record, path: Path) -> Path:
    """Draw forecast divided by measurement of each row; bands are goals."""
    rows = record.rows
    figure = Figure(figsize=(9, 1.2 + 0.3 * len(rows)), layout="constrained")
    time, memory = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows):
        ratio = row["ratio"]
        spread = [[ratio - min(row["ratios"])], [max(row["ratios"]) - ratio]]
        time.errorbar(ratio, place, xerr=spread, fmt="o", color="tab:blue", ecolor="0.6")
        ratios = memory_ratios(row)
        memory.plot(ratios, [place] * len(ratios), "o", color="tab:blue")
    for axes, what in ((time, "time"), (memory, "memory")):
        axes.axvspan(1 - GOALS[what], 1 + GOALS[what], color="tab:green", alpha=0.15)
        axes.axvline(1, color="0.3", linewidth=0.8)
        axes.set_xlabel(f"{what}, foreseen over measured")
    label_rows(time, [f"{row['network']}, {row['row']}" for row in rows])
    return save_svg(figure, path)


def window_picture(record: Record, path: Path) -> Path:
    """Draw foreseen over measured times of a batch, a color for each latency."""
    figure, axes = new_figure()
    for number, latency in enumerate(record.settings["latency_ms"]):
        rows = [row for row in record.rows if row["latency_ms"] == latency]
        axes.scatter(
            [row["measured_ms"] for row in rows],
            [row["predicted_ms"] for row in rows],
            color=f"C{number}",
            s=16,
            label=f"{latency:g} ms each way",
        )
    most = max(max(row["measured_ms"], row["predicted_ms"]) for row in record.rows)
    axes.plot([0, most], [0, most], color="0.7", linewidth=0.8)
    label_axes(axes, "measured, ms for a batch", "foreseen")
    return save_svg(figure, path)


def _draw_curve(
    axes: Axes, rows: list[dict[str, Any]], what: str, scale: float, number: int, label: str
) -> None:
    """Draw the curve of one method.

    Args:
        axes: The axes.
        rows: Rows of the method.
        what: Key of the values.
        scale: Factor of the values.
        number: Number of the curve, for its style.
        label: Name of the method.
    """
    seen: dict[int, list[float]] = {}
    for row in rows:
        if row[what] is not None:
            seen.setdefault(row["epoch"], []).append(scale * row[what])
    means = [fmean(values) for values in seen.values()]
    axes.plot(list(seen), means, **line_style(number), label=label)
    for epoch, values in seen.items():
        axes.plot([epoch] * len(values), values, ".", color=f"C{number}", markersize=3)


def _point_centres(points: Sequence[float], every: int) -> list[float]:
    """Return the middle of the updates of each point.

    >>> _point_centres([2.0, 1.5], every=10)
    [5.0, 15.0]
    """
    return [(number + 0.5) * every for number, _ in enumerate(points)]
