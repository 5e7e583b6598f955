"""Pictures of records, as SVG that is the same for the same record."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.record import Record
from benchmarks.report.tables_networks import GOALS, memory_ratios

# Dashes that tell coinciding lines apart.
DASHES = ("-", "--", ":", "-.")


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


def _ratio_bars(record: Record, what: str, path: Path) -> Path:
    """Draw a bar for each row with its ratio to the base, and its range."""
    rows = [row for row in record.rows if not row.get("short_steps")]
    figure, axes = _new_figure(8, 1.2 + 0.35 * len(rows))
    for place, row in enumerate(rows):
        ratio, goal = row["ratio"], row.get("goal")
        spread = [[ratio - row["ratio_min"]], [row["ratio_max"] - ratio]]
        colour = "tab:blue" if goal is None or ratio <= goal else "tab:orange"
        axes.barh(place, ratio, color=colour, xerr=spread, ecolor="0.3", capsize=2)
        if goal is not None:
            axes.plot([goal] * 2, [place - 0.45, place + 0.45], color="tab:red")
    _label_rows(axes, [row["row"] for row in rows])
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set_xlim(left=0)
    axes.set_xlabel(what)
    return _save_svg(figure, path)


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
    return _save_svg(figure, path)


def stages_picture(record: Record, path: Path) -> Path:
    """Draw the computed speed over the number of stages, a line for each row."""
    figure, axes = _new_figure()
    counts = record.settings["counts"]
    axes.plot(counts, counts, color="0.6", linewidth=0.8, label="as many as stages")
    for number, label in enumerate(dict.fromkeys(row["row"] for row in record.rows)):
        rows = [row for row in record.rows if row["row"] == label]
        axes.plot(
            [row["stages"] for row in rows],
            [row["computed_speed_up"] for row in rows],
            **_line_style(number),
            marker="o",
            markersize=4,
            label=label,
        )
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    where = "stages, each with a core of its own (computed)"
    _label_axes(axes, where, "samples per second, bp = 1")
    return _save_svg(figure, path)


def link_picture(record: Record, path: Path) -> Path:
    """Draw the time of a sample over the rate of the link, a line for each row."""
    figure, axes = _new_figure(7)
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
    _label_axes(axes, "link, Mbit/s each way", "ms for a sample")
    return _save_svg(figure, path)


def window_picture(record: Record, path: Path) -> Path:
    """Draw foreseen over measured times of a batch, a color for each latency."""
    figure, axes = _new_figure()
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
    _label_axes(axes, "measured, ms for a batch", "foreseen")
    return _save_svg(figure, path)


def slowdown_picture(record: Record, path: Path) -> Path:
    """Draw the test error over the slow-down, a line for each buffer size."""
    figure, axes = _new_figure()
    factors = record.settings["factors"]
    for number, buffer in enumerate(record.settings["buffers"]):
        rows = [row for row in record.rows if row["buffer"] == buffer]
        _draw_points(axes, rows, "factor", factors, number, f"buffer of {buffer}")
    axes.set_xticks(factors, [f"{factor:g}" for factor in factors])
    slower = "times slower, one stage of {stages}".format(**record.settings)
    _label_axes(axes, slower, "test error, %")
    return _save_svg(figure, path)


def compression_picture(record: Record, path: Path) -> Path:
    """Draw the test error over the bytes of a sample, a point for each seed of a codec."""
    figure, axes = _new_figure()
    for number, codec in enumerate(record.settings["codecs"]):
        rows = [row for row in record.rows if row["codec"] == codec]
        sent = fmean(row["sent_kib"] for row in rows)
        _draw_points(
            axes, [row | {"sent": sent} for row in rows], "sent", [sent], number, codec
        )
    axes.set_xscale("log")
    _label_axes(axes, "sent over all edges, KiB per sample", "test error, %")
    return _save_svg(figure, path)


def straggler_picture(record: Record, path: Path) -> Path:
    """Draw the speed of the other stages over the slow-down, a line for each method."""
    figure, axes = _new_figure()
    slowed = record.settings["slowed"]
    for number, method in enumerate(record.settings["methods"]):
        rows = [row for row in record.rows if row["row"] == method]
        others = [
            fmean(rate for k, rate in enumerate(row["batches_per_s"]) if k != slowed)
            for row in rows
        ]
        factors = [row["factor"] for row in rows]
        axes.plot(factors, others, **_line_style(number), marker="o", label=method)
    axes.set_ylim(bottom=0)
    slower = "times slower, one stage of {stages}".format(**record.settings)
    _label_axes(axes, slower, "batches per second of each other stage")
    return _save_svg(figure, path)


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
            axes.plot(at, means, **_line_style(number), label=label)
        axes.set_title(f"{count} stages")
        axes.set_xlabel("update")
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("training loss, mean of {every} updates".format(**settings))
    grid[0][-1].legend(fontsize="small")
    return _save_svg(figure, path)


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
    _label_rows(time, [f"{row['network']}, {row['row']}" for row in rows])
    return _save_svg(figure, path)


def kill_recovery_picture(record: Record, path: Path) -> Path:
    """Draw the batches that were repeated after a kill, a bar for each seed and each case."""
    killed = [row for row in record.rows if row["victim"] is not None]
    figure, axes = _new_figure(7, 1.2 + 0.25 * len(killed))
    for place, row in enumerate(killed):
        victim, others = row["turns_again"], row["others_again"]
        axes.barh(place, victim, color="tab:blue")
        axes.barh(place, others, left=victim, color="tab:orange")
    _label_rows(axes, [f"{r['row']}, stage {r['victim']}, seed {r['seed']}" for r in killed])
    axes.set_xlabel("batches learned again: blue by the stage killed, orange by the others")
    return _save_svg(figure, path)


def faults_picture(record: Record, path: Path) -> Path:
    """Draw the times to detection, a row for each kind of fault."""
    timed = [row for row in record.rows if row.get("detected_s") is not None]
    kinds = list(dict.fromkeys(row["row"] for row in timed))
    figure, axes = _new_figure(8, 1.2 + 0.3 * len(kinds))
    places = [kinds.index(row["row"]) for row in timed]
    axes.plot([row["detected_s"] for row in timed], places, "o", alpha=0.5)
    _label_rows(axes, kinds)
    axes.set_xlim(left=0)
    axes.set_xlabel("from the fault to the end of all processes, s")
    axes.grid(alpha=0.3)
    return _save_svg(figure, path)


def endurance_picture(record: Record, path: Path) -> Path:
    """Draw the memory of each training over its ticks."""
    figure, axes = _new_figure()
    for number, row in enumerate(record.rows):
        shares = [
            (place + 1) / len(row["memory_mib"]) for place in range(len(row["memory_mib"]))
        ]
        axes.plot(shares, row["memory_mib"], **_line_style(number), label=row["row"])
    _label_axes(axes, "part of the ticks", "memory of the process, MiB")
    return _save_svg(figure, path)


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
    axes.plot(list(seen), means, **_line_style(number), label=label)
    for epoch, values in seen.items():
        axes.plot([epoch] * len(values), values, ".", color=f"C{number}", markersize=3)


def _point_centres(points: Sequence[float], every: int) -> list[float]:
    """Return the middle of the updates of each point.

    >>> _point_centres([2.0, 1.5], every=10)
    [5.0, 15.0]
    """
    return [(number + 0.5) * every for number, _ in enumerate(points)]


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
    axes.plot(at, means, **_line_style(number), marker="o", label=label)
    for row in known:
        axes.plot(row[over], 100 * row["test_error"], ".", color=f"C{number}", markersize=4)


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


def _new_figure(width: float = 6, height: float = 4.2) -> tuple[Figure, Axes]:
    """Return an empty figure, whose sides are in inches, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _line_style(number: int) -> dict[str, Any]:
    """Return colour and dash of a line."""
    return {"color": f"C{number}", "linestyle": DASHES[number % len(DASHES)]}


def _label_axes(axes: Axes, across: str, up: str) -> None:
    """Add labels to both axes, a grid and a legend."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _label_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label positions 0, 1, ... of the vertical axis, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def _save_svg(figure: Figure, path: Path) -> Path:
    """Write the picture, with the same bytes for the same figure."""
    with matplotlib.rc_context({"svg.hashsalt": "hocket"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


PICTURES: Mapping[str, Callable[[Record, Path], Path]] = {
    "overhead": overhead_picture,
    "accuracy": accuracy_picture,
    "speed": speed_picture,
    "link": link_picture,
    "stages": stages_picture,
    "slowdown": slowdown_picture,
    "compression": compression_picture,
    "straggler": straggler_picture,
    "checkpoint": checkpoint_picture,
    "fault-injection": faults_picture,
    "curves": curves_picture,
    "plan": plan_picture,
    "window": window_picture,
    "kill-recovery": kill_recovery_picture,
    "startup": startup_picture,
    "endurance": endurance_picture,
    "gpu": gpu_picture,
    # Earlier names of measurements.
    "pace": straggler_picture,
    "faults": faults_picture,
    "rejoin": kill_recovery_picture,
}
