"""Pictures of speed."""

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.record import Record
from benchmarks.report.figures import label_axes, label_rows, new_figure, save_svg


def overhead_picture(record: Record, path: Path) -> Path:
    """Draw a bar for each row with the range of its ratios, and a mark at its goal."""
    return _ratio_bars(record, "time of a step, plain loop = 1; red: goal", path)


def checkpoint_picture(record: Record, path: Path) -> Path:
    """Draw a bar for each row with the range of its ratios."""
    return _ratio_bars(record, "time of a step, without checkpoints = 1", path)


def speed_picture(record: Record, path: Path) -> Path:
    """Draw a bar for each row with the range of its ratios."""
    return _ratio_bars(record, "samples per second, bp = 1", path)


def startup_picture(record: Record, path: Path) -> Path:
    """Draw a bar for each command with the range of its ratios."""
    return _ratio_bars(record, "time, import torch = 1", path)


def gpu_picture(record: Record, path: Path) -> Path:
    """Draw a bar for each network and row with the range of its ratios."""
    rows = [row | {"row": f"{row['network']}, {row['row']}"} for row in record.rows]
    return _ratio_bars(record.with_rows(rows), "time of a step, plain loop = 1", path)


def link_picture(record: Record, path: Path) -> Path:
    """Draw the time of a sample over the rate of the link, a line for each row."""
    figure, axes = new_figure(7)
    for number, label in enumerate(dict.fromkeys(row["row"] for row in record.rows)):
        rows = sorted(
            (row for row in record.rows if row["row"] == label), key=lambda row: row["mbit_s"]
        )
        middle = [row["ms_per_sample"] for row in rows]
        below = [row["ms_per_sample"] - row["ms_min"] for row in rows]
        above = [row["ms_max"] - row["ms_per_sample"] for row in rows]
        alone = rows[0]["processes"] == 1
        axes.errorbar(
            [row["mbit_s"] for row in rows],
            middle,
            yerr=[below, above],
            color="0.3" if alone else f"C{number}",
            linestyle=":" if alone else "-",
            marker=None if alone else "o",
            markersize=4,
            capsize=2,
            label=f"{label} (one node)" if alone else label,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    rates = record.settings["mbit_s"]
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(_log_ticks([row["ms_per_sample"] for row in record.rows]))
    label_axes(axes, "link, Mbit/s each way", "ms for a sample")
    return save_svg(figure, path)


def _ratio_bars(record: Record, what: str, path: Path) -> Path:
    """Draw a bar for each row with its ratio to the base, and its range."""
    rows = [row for row in record.rows if not row.get("short_steps")]
    figure, axes = new_figure(8, 1.2 + 0.35 * len(rows))
    for place, row in enumerate(rows):
        ratio, goal = row["ratio"], row.get("goal")
        spread = [[ratio - row["ratio_min"]], [row["ratio_max"] - ratio]]
        colour = "tab:blue" if goal is None or ratio <= goal else "tab:orange"
        axes.barh(place, ratio, color=colour, xerr=spread, ecolor="0.3", capsize=2)
        if goal is not None:
            axes.plot([goal] * 2, [place - 0.45, place + 0.45], color="tab:red")
    label_rows(axes, [row["row"] for row in rows])
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set_xlim(left=0)
    axes.set_xlabel(what)
    return save_svg(figure, path)


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Return 1, 2 and 5 times powers of ten around these values.

    >>> _log_ticks([0.8, 7.0])
    [0.5, 1.0, 2.0, 5.0, 10.0]
    """
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    powers = range(low - 1, high + 1)
    ticks = [round(digit * 10.0**power, -power) for power in powers for digit in (1, 2, 5)]
    first = max((n for n, tick in enumerate(ticks) if tick <= min(values)), default=0)
    last = min(n for n, tick in enumerate(ticks) if tick >= max(values))
    return ticks[first : last + 1]
