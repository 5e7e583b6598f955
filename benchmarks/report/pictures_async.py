"""Pictures of stages that run freely."""

from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes

from benchmarks.harness.record import Record
from benchmarks.report.figures import label_axes, label_rows, line_style, new_figure, save_svg


def slowdown_picture(record: Record, path: Path) -> Path:
    """Draw the test error over the slow-down, a line for each buffer size."""
    figure, axes = new_figure()
    factors = record.settings["factors"]
    for number, buffer in enumerate(record.settings["buffers"]):
        rows = [row for row in record.rows if row["buffer"] == buffer]
        _draw_points(axes, rows, "factor", factors, number, f"buffer of {buffer}")
    axes.set_xticks(factors, [f"{factor:g}" for factor in factors])
    slower = "times slower, one stage of {stages}".format(**record.settings)
    label_axes(axes, slower, "test error, %")
    return save_svg(figure, path)


def compression_picture(record: Record, path: Path) -> Path:
    """Draw the test error over the bytes of a sample, a point for each seed of a codec."""
    figure, axes = new_figure()
    for number, codec in enumerate(record.settings["codecs"]):
        rows = [row for row in record.rows if row["codec"] == codec]
        sent = fmean(row["sent_kib"] for row in rows)
        _draw_points(
            axes, [row | {"sent": sent} for row in rows], "sent", [sent], number, codec
        )
    axes.set_xscale("log")
    label_axes(axes, "sent over all edges, KiB per sample", "test error, %")
    return save_svg(figure, path)


def straggler_picture(record: Record, path: Path) -> Path:
    """Draw the speed of the other stages over the slow-down, a line for each method."""
    figure, axes = new_figure()
    slowed = record.settings["slowed"]
    for number, method in enumerate(record.settings["methods"]):
        rows = [row for row in record.rows if row["row"] == method]
        others = [
            fmean(rate for k, rate in enumerate(row["batches_per_s"]) if k != slowed)
            for row in rows
        ]
        factors = [row["factor"] for row in rows]
        axes.plot(factors, others, **line_style(number), marker="o", label=method)
    axes.set_ylim(bottom=0)
    slower = "times slower, one stage of {stages}".format(**record.settings)
    label_axes(axes, slower, "batches per second of each other stage")
    return save_svg(figure, path)


def kill_recovery_picture(record: Record, path: Path) -> Path:
    """Draw the batches that were repeated after a kill, a bar for each seed and each case."""
    killed = [row for row in record.rows if row["victim"] is not None]
    figure, axes = new_figure(7, 1.2 + 0.25 * len(killed))
    for place, row in enumerate(killed):
        victim, others = row["turns_again"], row["others_again"]
        axes.barh(place, victim, color="tab:blue")
        axes.barh(place, others, left=victim, color="tab:orange")
    label_rows(axes, [f"{r['row']}, stage {r['victim']}, seed {r['seed']}" for r in killed])
    axes.set_xlabel("batches learned again: blue by the stage killed, orange by the others")
    return save_svg(figure, path)


def _draw_points(
    axes: Axes, rows: list[dict[str, Any]], over: str, at: list[float], number: int, label: str
) -> None:
    """Draw errors of single seeds as points, and a line through their means.

    Args:
        axes: The axes.
        rows: The rows.
        over: Key of the horizontal coordinate.
        at: Horizontal coordinates of the means.
        number: Number of the line, for its style.
        label: Name of the line.
    """
    known = [row for row in rows if row["test_error"] is not None]
    means = [fmean(100 * r["test_error"] for r in known if r[over] == x) for x in at]
    axes.plot(at, means, **line_style(number), marker="o", label=label)
    for row in known:
        axes.plot(row[over], 100 * row["test_error"], ".", color=f"C{number}", markersize=4)
