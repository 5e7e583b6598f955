"""Tables of training results, and of forecasts."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.harness.record import Record
from benchmarks.report.markdown import markdown_table


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
