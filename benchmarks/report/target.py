"""Table and picture of times to a loss."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.harness.record import Record
from benchmarks.report.figures import DASHES, save_svg
from benchmarks.report.markdown import markdown_table


def target_table(record: Record) -> str:
    """Return a table with a line for each row over each link."""
    heads = (
        "row", "link", "updates to the loss", "learning rate", "s/update", "range",
        "s to the loss", "beside the best synchronous", "one run over the link, s",
    )  # fmt: skip
    lines = [
        (
            row["row"],
            row["link"],
            "-" if row["updates"] is None else str(row["updates"]),
            f"{row['learning_rate']:g}{' (edge)' if row['at_edge'] else ''}",
            f"{row['update_s']:.3f}",
            f"{row['min_s']:.3f} to {row['max_s']:.3f}",
            "-" if row["seconds"] is None else f"{row['seconds']:.0f}",
            "-" if row["beside_best"] is None else f"{row['beside_best']:.2f}",
            _confirmed(row),
        )
        for row in record.rows
    ]
    legend = (
        "{network} with {parameters:,} parameters on {data}, batches of {batch}, two nodes of "
        "one process with {threads} thread each on one machine (bp-all: one node with all "
        "threads). Updates until the test loss is {target:g} or less, evaluated every {every} "
        "of {updates}, without the link, at the best of the learning rates {rates}; edge: the "
        "least or the largest of them. Rows that wait for all gradients have the updates of "
        "back-propagation. Seconds of an update: median and range over {repetitions} rounds in "
        "which all rows have a turn. Seconds to the loss are the product."
    ).format(**record.settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def target_picture(record: Record, path: Path) -> Path:
    """Draw the test loss over seconds, a panel for each link."""
    links = record.settings["links"]
    figure = Figure(figsize=(5 * len(links), 5.5), layout="constrained")
    panels = figure.subplots(1, len(links), sharey=True, squeeze=False)[0]
    labels = list(dict.fromkeys(row["row"] for row in record.rows))
    lines = {}
    for axes, link in zip(panels, links, strict=True):
        for row in (one for one in record.rows if one["link"] == link):
            number = labels.index(row["row"])
            seconds = [point["updates"] * row["update_s"] for point in row["curve"]]
            losses = [point["test_loss"] for point in row["curve"]]
            dash = DASHES[number // 10 % len(DASHES)]
            (lines[row["row"]],) = axes.plot(seconds, losses, dash, color=f"C{number % 10}")
        axes.axhline(record.settings["target"], color="0.5", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_title("no limit" if link == "none" else link)
        axes.set_xlabel("seconds")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test loss")
    figure.legend(
        lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize="small"
    )
    return save_svg(figure, path)


def _confirmed(row: Mapping[str, Any]) -> str:
    """Return the seconds of the real run, its ratio to the product, and its last loss."""
    found = row["confirmed"]
    if found is None:
        return "-"
    ratio, loss = found["beside_product"], found["test_loss"]
    return f"{found['seconds']:.0f}, {ratio:.2f} of the product, loss {loss:.3f}"
