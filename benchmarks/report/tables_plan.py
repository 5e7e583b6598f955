"""Table of forecasts of `hocket plan` and of what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.record import Record
from benchmarks.report.markdown import table

# Largest relative errors of forecasts.
GOALS = {"time": 0.07, "memory": 0.10}


def plan_table(record: Record) -> str:
    """Return a table with a line for each method on each network, and the goals below."""
    shown = table(
        record.rows,
        ("network", "{network}"),
        ("method", "{row}"),
        ("cut at", lambda row: ", ".join(row["cuts"])),
        ("foreseen, ms/sample", "{predicted_ms:.2f}"),
        ("measured", "{measured_ms:.2f}"),
        ("ratio", "{ratio:.2f}"),
        ("range", lambda row: f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}"),
        ("foreseen, MiB", lambda row: ", ".join(f"{mib:.0f}" for mib in row["predicted_mib"])),
        ("measured", lambda row: ", ".join(f"{mib:.0f}" for mib in row["measured_mib"])),
        ("ratio", lambda row: ", ".join(f"{ratio:.2f}" for ratio in memory_ratios(row))),
    )
    legend = (
        "{stages} processes of one machine, cut by measured times. Ratios: foreseen over "
        "measured; of times the median and range over {repetitions} rounds of {steps} steps, "
        "each foreseen anew, between two turns of those steps. MiB: what training adds to each "
        "process at its fullest, without what PyTorch and its kernels keep for themselves, "
        "where freed memory goes back to the system at once."
    ).format(**record.settings)
    return f"{shown}\n\n{legend}\n\n{_describe_goals(record.rows)}"


def memory_ratios(row: Mapping[str, Any]) -> list[float]:
    """Return forecast divided by measured memory of each process."""
    pairs = zip(row["predicted_mib"], row["measured_mib"], strict=True)
    return [predicted / measured for predicted, measured in pairs]


def _describe_goals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how often each goal is met, and the row that misses it most."""
    lines = []
    for quantity, goal in GOALS.items():
        errors = {
            f"{row['row']} on {row['network']}": {
                "time": abs(row["ratio"] - 1),
                "memory": max(abs(ratio - 1) for ratio in memory_ratios(row)),
            }[quantity]
            for row in rows
        }
        worst = max(errors, key=lambda name: errors[name])
        met = sum(error <= goal for error in errors.values())
        shown = f"worst {worst} with {errors[worst]:.1%}"
        lines.append(f"{quantity} within {goal:.0%}: {met} of {len(errors)}, {shown}")
    return f"Goals: {'; '.join(lines)}."
