"""Tables of what was measured of networks that were not written here."""

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.bench.markdown import lines_of, mean, percent
from hocket.bench.record import Record


def curves(record: Record) -> str:
    """One line for each number of stages and method."""
    heads = (
        "stages", "method", "batch per tick", "staleness of stage 0", "first loss", "last loss",
        "test loss", "test error", "single seeds",
    )  # fmt: skip
    cases = dict.fromkeys((row["stages"], row["row"]) for row in record.rows)
    lines = []
    for count, label in cases:
        mine = [row for row in record.rows if (row["stages"], row["row"]) == (count, label)]
        whole = [row for row in mine if row["failure"] is None]
        seeds = [percent(row["test_error"]) for row in whole]
        broken = [f"seed {row['seed']} broke off" for row in mine if row["failure"]]
        lines.append(
            (
                str(count),
                label,
                str(mine[0]["batch_per_tick"]),
                mean([row["staleness"][0] for row in whole], "{:.2f}"),
                _mean_loss(whole, 0),
                _mean_loss(whole, -1),
                mean([row["test_loss"] for row in whole], "{:.3f}"),
                mean([row["test_error"] for row in whole], "{:.2%}"),
                ", ".join(seeds + broken),
            )
        )
    told = record.settings | {"parameters": record.rows[0]["parameters"]}
    legend = (
        "After {updates} updates of {batch} samples by {optimizer}, mean over seeds: {network} "
        "with {parameters:,} parameters on {data}. First, last: training loss, mean of {every} "
        "updates."
    ).format(**told)
    return f"{lines_of(heads, lines)}\n\n{legend}"


def _mean_loss(rows: Sequence[Mapping[str, Any]], point: int) -> str:
    """The mean over seeds of one point of their curves."""
    return mean([row["train_losses"][point] for row in rows], "{:.3f}")
