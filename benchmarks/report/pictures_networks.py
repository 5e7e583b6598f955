"""Pictures of trainings of networks, and of forecasts."""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.harness.record import Record
from benchmarks.report.figures import label_axes, label_rows, new_figure, save_svg
from benchmarks.report.tables_networks import GOALS, memory_ratios


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
