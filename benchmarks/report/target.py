"""Tables and picture of times to a loss."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.harness.link_times import NO_LIMIT
from benchmarks.harness.record import Record
from benchmarks.report.figures import DASHES, save_svg
from benchmarks.report.markdown import markdown_table


def target_table(record: Record) -> str:
    """Return a table for each link, the row that comes to the loss first on top."""
    tables = []
    for link in record.settings["links"]:
        rows = [row for row in record.rows if row["link"] == link]
        tables.append(f"**Link: {_in_words(link)}**\n\n{_link_table(rows)}")
    legend = (
        "{network} with {parameters:,} parameters on {data}, batches of {batch}, two nodes of "
        "one process with {threads} thread each on one machine (bp: one node; bp-all: one node "
        "with the threads of both). Updates until the test loss is {target:g} or less, "
        "evaluated every {every} of {updates}, without the link, at the best of the learning "
        "rates {rates}; edge: the least or the largest of them. Rows that wait for all "
        "gradients have the updates of back-propagation. Seconds of an update: median and "
        "range over {repetitions} rounds in which all rows have a turn. Seconds to the loss "
        "are the product of both, given beside those of one node and of the best row that "
        "waits for all gradients, bp-all among them."
    ).format(**record.settings)
    confirmed = [_confirmed(row) for row in record.rows if row["confirmed"] is not None]
    return "\n\n".join([*tables, legend, *confirmed])


def _link_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the rows over one link."""
    heads = (
        "row", "updates", "rate", "s/update", "range", "s to the loss", "beside bp",
        "beside the best synchronous",
    )  # fmt: skip
    alone = next((row["seconds"] for row in rows if row["row"] == "bp"), None)
    lines = [
        (
            row["row"],
            "-" if row["updates"] is None else str(row["updates"]),
            f"{row['learning_rate']:g}{' (edge)' if row['at_edge'] else ''}",
            f"{row['update_s']:.2f}",
            f"{row['min_s']:.2f} to {row['max_s']:.2f}",
            "-" if row["seconds"] is None else f"{row['seconds']:.0f}",
            "-" if None in (row["seconds"], alone) else f"{row['seconds'] / alone:.2f}",
            "-" if row["beside_best"] is None else f"{row['beside_best']:.2f}",
        )
        for row in sorted(rows, key=_seconds)
    ]
    return markdown_table(heads, lines)


def _seconds(row: Mapping[str, Any]) -> float:
    """Return the seconds to the loss; infinity if it was not reached."""
    return float("inf") if row["seconds"] is None else float(row["seconds"])


def _in_words(link: str) -> str:
    """Return a link in words.

    >>> _in_words("none"), _in_words("1Gbit,20ms")
    ('no limit', '1 Gbit/s, 20 ms')
    """
    if link == NO_LIMIT:
        return "no limit"
    return re.sub(r"(\d)([a-zA-Z])", r"\1 \2", link).replace("bit", "bit/s").replace(",", ", ")


def target_picture(record: Record, path: Path) -> Path:
    """Draw the test loss over seconds, a panel for each link."""
    panels = {
        _in_words(link): [row for row in record.rows if row["link"] == link]
        for link in record.settings["links"]
    }
    return draw_losses(panels, record.settings["target"], path)


def draw_losses(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], target: float, path: Path
) -> Path:
    """Draw the test loss of rows over seconds.

    Args:
        rows: Rows of each panel, by its title.
        target: The loss to reach.
        path: File of the picture.
    """
    figure = Figure(figsize=(5 * len(rows), 5.5), layout="constrained")
    panels = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    every = [row for shown in rows.values() for row in shown]
    labels = list(dict.fromkeys(row["row"] for row in every))
    lines = {}
    for axes, (title, shown) in zip(panels, rows.items(), strict=True):
        for row in (one for one in shown if one["curve"]):
            number = labels.index(row["row"])
            seconds = [point["updates"] * row["update_s"] for point in row["curve"]]
            losses = [point["test_loss"] for point in row["curve"]]
            dash = DASHES[number // 10 % len(DASHES)]
            (lines[row["row"]],) = axes.plot(seconds, losses, dash, color=f"C{number % 10}")
        axes.axhline(target, color="0.5", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_title(title)
        axes.set_xlabel("seconds")
        axes.grid(alpha=0.3)
    # Peaks of trainings that nearly diverged would leave no room for the others.
    panels[0].set_ylim(top=max(row["curve"][0]["test_loss"] for row in every if row["curve"]))
    panels[0].set_ylabel("test loss")
    figure.legend(
        lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize="small"
    )
    return save_svg(figure, path)


def _confirmed(row: Mapping[str, Any]) -> str:
    """Return in words the seconds of the real run, its ratio to the product, and its loss."""
    return (
        "One run of {row} (link: {words}) took {seconds:.0f} s, {beside_product:.2f} of the "
        "product, and ended at a test loss of {test_loss:.3f}."
    ).format(**{**row, **row["confirmed"]}, words=_in_words(row["link"]))
