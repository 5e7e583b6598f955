"""Tables of training results, and of forecasts."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.harness.record import Record
from benchmarks.report.markdown import markdown_table, mean, percent


def accuracy_table(record: Record) -> str:
    """Return a table with a line for each method, after the last epoch."""
    heads = (
        "method", "batch per tick", "staleness of stage 0", "training loss", "test loss",
        "test error", "single seeds",
    )  # fmt: skip
    lines = []
    for label in dict.fromkeys(row["row"] for row in record.rows):
        mine = [row for row in record.rows if row["row"] == label]
        last = [
            row
            for row in mine
            if row["failure"] is None and row["epoch"] == record.settings["epochs"]
        ]
        failed = [
            f"seed {r['seed']} broke off in epoch {r['epoch']}" for r in mine if r["failure"]
        ]
        seeds = [percent(row["test_error"]) for row in last]
        lines.append(
            (
                label,
                str(mine[0]["batch_per_tick"]),
                mean([row["staleness"][0] for row in last], "{:.2f}"),
                mean([row["train_loss"] for row in last], "{:.3f}"),
                mean([row["test_loss"] for row in last], "{:.3f}"),
                mean([row["test_error"] for row in last], "{:.2%}"),
                ", ".join(seeds + failed),
            )
        )
    settings = record.settings
    legend = (
        "After the last of {epochs} epochs, mean over seeds: {network} on {data}, {stages} "
        "stages, SGD with rate {rate}, momentum {momentum}, weight decay {weight_decay}, "
        "{batch} samples in an update."
    ).format(**settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def curves_table(record: Record) -> str:
    """Return a table with a line for each number of stages and method."""
    heads = (
        "stages", "method", "batch per tick", "staleness of stage 0", "first loss", "last loss",
        "test loss", "test error", "single seeds",
    )  # fmt: skip
    cases = dict.fromkeys((row["stages"], row["row"]) for row in record.rows)
    lines = []
    for count, label in cases:
        mine = [row for row in record.rows if (row["stages"], row["row"]) == (count, label)]
        complete = [row for row in mine if row["failure"] is None]
        seeds = [percent(row["test_error"]) for row in complete]
        failed = [f"seed {row['seed']} broke off" for row in mine if row["failure"]]
        lines.append(
            (
                str(count),
                label,
                str(mine[0]["batch_per_tick"]),
                mean([row["staleness"][0] for row in complete], "{:.2f}"),
                _mean_loss(complete, 0),
                _mean_loss(complete, -1),
                mean([row["test_loss"] for row in complete], "{:.3f}"),
                mean([row["test_error"] for row in complete], "{:.2%}"),
                ", ".join(seeds + failed),
            )
        )
    shown = record.settings | {"parameters": record.rows[0]["parameters"]}
    legend = (
        "After {updates} updates of {batch} samples by {optimizer}, mean over seeds: {network} "
        "with {parameters:,} parameters on {data}. First, last: training loss, mean of {every} "
        "updates."
    ).format(**shown)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def plan_table(record: Record) -> str:
    """Return a table with a line for each method on each network, and the goals below."""
    heads = (
        "network", "method", "cut at", "foreseen, ms/sample", "measured", "ratio", "range",
        "foreseen, MiB", "measured", "ratio", "over the best cut",
    )  # fmt: skip
    lines = [
        (
            row["network"],
            row["row"],
            ", ".join(row["cuts"]),
            f"{row['predicted_ms']:.2f}",
            f"{row['measured_ms']:.2f}",
            f"{row['ratio']:.2f}",
            f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}",
            ", ".join(f"{mib:.0f}" for mib in row["predicted_mib"]),
            ", ".join(f"{mib:.0f}" for mib in row["measured_mib"]),
            ", ".join(f"{ratio:.2f}" for ratio in memory_ratios(row)),
            f"{row['imbalance']:.1%}",
        )
        for row in record.rows
    ]
    settings = record.settings
    legend = (
        "{stages} processes of one machine, cut by measured times. Ratios: foreseen over "
        "measured; of times the median and range over {repetitions} rounds of {steps} steps, "
        "each foreseen anew, between two turns of those steps, of which one took {drift:.0%} "
        "more or less than the other (median). MiB: what training adds to each "
        "process at its fullest, without what PyTorch and its kernels keep for themselves, "
        "where freed memory goes back to the system at once. Over the best cut: how much "
        "longer the longest stage is than with the best of all cuts, by a second timing of all "
        "layers. "
        "{disturbed} turns were disturbed."
    ).format(
        **settings,
        drift=median(abs(drift - 1) for row in record.rows for drift in row["drifts"]),
        disturbed=sum(row["disturbed"] for row in record.rows),
    )
    return f"{markdown_table(heads, lines)}\n\n{legend}\n\n{_describe_goals(record.rows)}"


def window_table(record: Record) -> str:
    """Return a table with a line for each method over each link, on each number of stages."""
    heads = (
        "stages", "latency, ms", "method", "extra delay", "staleness", "window law, ms",
        "foreseen", "measured", "range", "foreseen / measured",
    )  # fmt: skip
    lines = [
        (
            str(row["stages"]),
            f"{row['latency_ms']:g}",
            row["row"],
            ", ".join(map(str, row["extra_delay"])) or "-",
            f"{row['staleness']:g}",
            f"{row['law_ms']:.1f}",
            f"{row['predicted_ms']:.1f}",
            f"{row['measured_ms']:.1f}",
            f"{row['measured_min']:.1f} to {row['measured_max']:.1f}",
            f"{row['predicted_ms'] / row['measured_ms']:.2f}",
        )
        for row in record.rows
    ]
    legend = (
        "Milliseconds for a batch of {batch}: {network}, a node of one process with {threads} "
        "thread for each stage, all on one machine, joined by a link of {mbit_s:g} Mbit/s with "
        "this latency each way. Measured: median and range over {repetitions} turns of {steps} "
        "steps. Staleness: that of stage 0, in updates."
    ).format(**record.settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def memory_ratios(row: Mapping[str, Any]) -> list[float]:
    """Return forecast divided by measured memory of each process."""
    pairs = zip(row["predicted_mib"], row["measured_mib"], strict=True)
    return [predicted / measured for predicted, measured in pairs]


# Largest relative errors of forecasts, and largest excess of a cut's longest stage.
GOALS = {"time": 0.07, "memory": 0.10, "balance": 0.03}


def _describe_goals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how often each goal is met, and the row that misses it most."""
    lines = []
    for quantity, goal in GOALS.items():
        errors = {
            f"{row['row']} on {row['network']}": {
                "time": abs(row["ratio"] - 1),
                "memory": max(abs(ratio - 1) for ratio in memory_ratios(row)),
                "balance": row["imbalance"],
            }[quantity]
            for row in rows
        }
        worst = max(errors, key=lambda name: errors[name])
        met = sum(error <= goal for error in errors.values())
        shown = f"worst {worst} with {errors[worst]:.1%}"
        lines.append(f"{quantity} within {goal:.0%}: {met} of {len(errors)}, {shown}")
    return f"Goals: {'; '.join(lines)}."


def _mean_loss(rows: Sequence[Mapping[str, Any]], point: int) -> str:
    """Return the mean over seeds of one point of their curves."""
    return mean([row["train_losses"][point] for row in rows], "{:.3f}")
