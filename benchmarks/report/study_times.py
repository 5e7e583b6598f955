"""Table and picture of times to the target of a study."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.record import Record
from benchmarks.report.markdown import markdown_table
from benchmarks.report.target import draw_losses
from hocket_lab.studies.report import NONE, format_spread
from hocket_lab.studies.target import Target


def study_times_table(record: Record) -> str:
    """Return a table of all rows, the one that comes to the target first on top."""
    base = next((row for row in record.rows if row["base"]), None)
    heads = (
        "row", "processes", "threads of each", "rate", "updates", "ms/update", "range",
        "s to the target",
        "beside bp", "one run: s", "updates", "beside the product", "test_loss",
    )  # fmt: skip
    lines = [_line(row, base) for row in sorted(record.rows, key=_seconds)]
    legend = (
        "{network} with {parameters:,} parameters on {data}. Updates until {target}: mean and "
        "standard deviation over the seeds {numbers}, from the study {study}, at the best "
        "learning rate there; edge: the least or the largest that was tried. Baselines that "
        "wait for the gradient of the whole batch have those of bp. Milliseconds of an update "
        "on the batches of the study: median and range over {repetitions} rounds in which all "
        "rows have a turn. Independent: a training of its own in each process, at the same "
        "time, the limit of the machine. Seconds to the target are the product of both, given "
        "beside those of bp. One run: the training of the first seed in processes, without "
        "evaluations, until its own updates to the target; its seconds beside the product, and "
        "the test loss at its end."
    ).format(**record.settings, numbers=", ".join(map(str, record.settings["seeds"])))
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def study_times_picture(record: Record, path: Path) -> Path:
    """Draw the test loss of the first seed over seconds."""
    target = Target.parse(record.settings["target"])
    return draw_losses({"first seed": record.rows}, target.limit, path)


def _line(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of a row.

    Args:
        row: The row.
        base: That of back-propagation, if there is one.
    """
    known = base is not None and None not in (row["seconds"], base["seconds"])
    rate = NONE if row["learning_rate"] is None else f"{row['learning_rate']:g}"
    confirmed = row["confirmed"]
    return (
        row["row"],
        str(row["processes"]),
        str(row["threads"]),
        f"{rate}{' (edge)' if row['at_edge'] else ''}",
        format_spread(row["updates"], 0),
        f"{1000 * row['update_s']:.1f}",
        f"{1000 * row['min_s']:.1f} to {1000 * row['max_s']:.1f}",
        NONE if row["seconds"] is None else f"{row['seconds']:.1f}",
        f"{row['seconds'] / base['seconds']:.2f}" if base is not None and known else NONE,
        *(
            (NONE,) * 4
            if confirmed is None
            else (
                f"{confirmed['seconds']:.1f}",
                f"{confirmed['updates']:,}",
                f"{confirmed['beside_product']:.2f}",
                f"{confirmed['test_loss']:.3f}",
            )
        ),
    )


def _seconds(row: Mapping[str, Any]) -> float:
    """Return the seconds to the target; infinity if it was not reached."""
    return float("inf") if row["seconds"] is None else float(row["seconds"])
