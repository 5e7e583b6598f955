"""Tables of times to a loss over links."""

import re
from collections.abc import Sequence
from statistics import median

from benchmarks.harness.link_times import NO_LIMIT, NODES
from benchmarks.harness.record import Record
from benchmarks.report.goals import target_goals
from benchmarks.report.markdown import NONE, Cell, Row, table


def target_table(record: Record) -> str:
    """Return a table for each link, the row that comes to the loss first on top, and the rest.

    Below are the goals, and what is forecast for more machines.
    """
    settings = record.settings
    timed = timed_rows(record.rows)
    over = {link: [row for row in timed if row["link"] == link] for link in settings["links"]}
    tables = [
        f"**Link: {name_link(link)}**\n\n{_link_table(rows)}" for link, rows in over.items()
    ]
    legend = (
        "{network} with {parameters:,} parameters on {data}, batches of {batch}, two nodes of "
        "one process with {threads} thread each on one machine (bp: one node; bp-all: one node "
        "with all cores; their seconds are the median over all links, as they use none). "
        "Updates until the test loss is {target:g} or less, evaluated every {every} of "
        "{updates}, rounded up to meetings, without the link, at the best of the learning "
        "rates {rates}; edge: the least or the largest that was tried. Rows that wait for all "
        "gradients have the updates of back-propagation. Seconds of an update: median and "
        "range over {repetitions} rounds in which all rows have a turn. Seconds to the loss "
        "are the product of both. Updates count until the loss stays there, for each of the "
        "seeds {seeds}, of which seconds and final loss have the mean; the first one chose the "
        "rate{fewer}. MiB: peak of each machine, without PyTorch itself. Sent: by the busier "
        "machine in an update, with all headers."
    )
    last = settings["links"][-1]
    further = [row for row in record.rows if "forecast" in row and row["link"] == last]
    tables.append(target_goals(over[last], further))
    tables.append(_forecast_table(record, timed))
    return "\n\n".join([*tables, legend.format(**settings, fewer=_name_fewer(record))])


def timed_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are timed; rows of one machine have the median over all links."""
    timed = [row for row in rows if "forecast" not in row]

    def with_median(row: Row) -> Row:
        over = [other for other in timed if other["row"] == row["row"]]
        update_s = median(each["update_s"] for each in over)
        least, most = min(each["min_s"] for each in over), max(each["max_s"] for each in over)
        seconds = None if row["updates"] is None else row["updates"] * update_s
        found = {"update_s": update_s, "min_s": least, "max_s": most, "seconds": seconds}
        return {**row, **found}

    return [with_median(row) if row["machines"] == 1 else row for row in timed]


def _link_table(rows: Sequence[Row]) -> str:
    """Return the table of the rows over one link."""
    alone = next((row for row in rows if row["row"] == "bp"), None)
    return table(
        sorted(rows, key=_seconds),
        ("row", "{row}"),
        ("updates", _format_updates),
        ("rate", _format_rate),
        ("s/update", "{update_s:.2f}"),
        ("range", "{min_s:.2f} to {max_s:.2f}"),
        ("s to the loss", "{seconds:.0f}"),
        ("compared with bp", lambda row: _format_ratio(row, alone)),
        ("MiB", _format_peaks),
        ("sent, MiB", "{sent_mib:.1f}"),
        ("final loss", "{final_loss:.3f}"),
    )


def _forecast_table(record: Record, timed: Sequence[Row]) -> str:
    """Return the table of forecasts, compared with what is timed on as many machines."""
    measured = {(row["row"], row["link"], row["machines"]): row["update_s"] for row in timed}

    def compare(row: Row) -> str:
        found = measured.get((row["row"], row["link"], row["machines"]))
        return NONE if found is None else f"{row['update_s'] / found:.2f}"

    rows = [row for row in record.rows if "forecast" in row]
    shown = table(
        sorted(rows, key=lambda row: max(NODES, row["machines"])),
        ("row", "{row}"),
        ("link", lambda row: name_link(row["link"])),
        ("machines", "{machines}"),
        ("updates", _format_updates),
        ("s/update", "{update_s:.2f}"),
        ("compared with timed", compare),
        ("s to the loss", "{seconds:.0f}"),
        ("MiB", _format_peaks),
        ("final loss", "{final_loss:.3f}"),
    )
    note = "gpipe: a flushed pipeline with its best number of micro-batches, as fast in parts."
    return f"**Forecast, machines that share nothing**\n\n{shown}\n\n{note}"


def short_target_table(record: Record) -> str:
    """Return a table of seconds to the loss over the first and last link, of one machine's.

    Each method has one row: the variant that is the fastest over the last link.
    """
    settings = record.settings
    over: dict[str, dict[str, Row]] = {link: {} for link in settings["links"]}
    for row in timed_rows(record.rows):
        over[row["link"]][row["row"]] = row

    def compare(link: str) -> Cell:
        return lambda row: _format_ratio(over[link][row["row"]], over[link].get("bp"))

    first, last = settings["links"][0], settings["links"][-1]
    fastest: dict[str, Row] = {}
    for found in sorted(over[last].values(), key=_seconds):
        fastest.setdefault(re.split("[ +]", found["row"])[0], found)
    shown = table(
        [*fastest.values()],
        ("row", "{row}"),
        ("updates", _format_updates),
        ("final loss", "{final_loss:.3f}"),
        ("MiB of each machine", _format_peaks),
        *((name_link(link), compare(link)) for link in dict.fromkeys((first, last))),
    )
    legend = (
        "{network} on {data}, batches of {batch}: updates to a test loss that stays at "
        "{target:g} or less, evaluated every {every}, rounded up to meetings, times seconds of "
        "each over the link, compared with bp on one machine; a dash: not in {updates} "
        "updates. Of each method the fastest variant timed; rates: {tried}; seeds: {seeds}"
        "{fewer}. Memory without PyTorch. Measured on {date} with torch {torch} on {cpu}."
    )
    lists = {"tried": settings["rates"], "seeds": settings["seeds"]}
    written = {name: ", ".join(map(str, values)) for name, values in lists.items()}
    filled = settings | written | record.origin | {"fewer": _name_fewer(record)}
    return f"{shown}\n\n{legend.format(**filled)}"


def _name_fewer(record: Record) -> str:
    """Return the part of a legend on rows that have one rate and seed; maybe empty."""
    if not (thorough := record.settings.get("thorough")):
        return ""
    return f"; all trainings but {', '.join(['bp', *thorough])} have the first of each"


def name_link(link: str) -> str:
    """Return the name of a link in a text.

    >>> name_link("none"), name_link("1Gbit,20ms")
    ('no limit', '1 Gbit/s, 20 ms')
    """
    if link == NO_LIMIT:
        return "no limit"
    return re.sub(r"(\d)([a-zA-Z])", r"\1 \2", link).replace("bit", "bit/s").replace(",", ", ")


def _format_rate(row: Row) -> str:
    rate = row["learning_rate"]
    edge = " (edge)" if row["at_edge"] else ""
    return f"{NONE if rate is None else f'{rate:g}'}{edge}"


def _format_updates(row: Row) -> str:
    """Return the updates of each seed, a dash for one that has not reached the loss."""
    return ", ".join(NONE if updates is None else f"{updates}" for updates in row["reached"])


def _format_peaks(row: Row) -> str:
    return ", ".join(f"{mib:.0f}" for mib in row["peak_mib"]) or NONE


def _format_ratio(row: Row, base: Row | None) -> str:
    """Return the ratio of the seconds of two rows, a dash if one has none."""
    if base is None or None in (row["seconds"], base["seconds"]):
        return NONE
    return f"{row['seconds'] / base['seconds']:.2f}"


def _seconds(row: Row) -> float:
    """Return the seconds to the loss; infinity if it was not reached."""
    return float("inf") if row["seconds"] is None else float(row["seconds"])
