"""Short tables of studies."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.record import Record
from benchmarks.report.markdown import markdown_table
from hocket.errors import DataError
from hocket.options import Named
from hocket.runs.config import RunConfig
from hocket_lab.studies.report import first_stage_lateness, format_spread
from hocket_lab.studies.selection import is_chosen


def short_study_table(record: Record, chosen: str) -> str:
    """Return a table of the complete rows of a study: how late they are, and what they reach.

    Args:
        record: The record of the study.
        chosen: Numbers of rows of the record, from 1, with commas.

    Raises:
        DataError: There is no row of such a number.
    """
    metric, target = record.settings["select"], record.settings["target"]
    heads = ["method", "stages", "staleness", metric]
    heads += [f"updates to {target}"] if target is not None else []
    complete = [row for row in _choose(record.rows, chosen) if row["state"] == "complete"]
    names = [_method_and_stages(row) for row in complete]
    lines = []
    for row, (method, stages) in zip(complete, names, strict=True):
        alone = names.count((method, stages)) == 1
        cells = [
            method if alone else row["row"],
            stages,
            first_stage_lateness(row["options"])[0],
            format_spread(row["final"][metric], 3),
        ]
        if (goal := row["to_target"]) is not None:
            cells.append(format_spread(goal["updates"], 0))
        lines.append(cells)
    base = vars(RunConfig()) | record.settings["base"]
    conditions = _conditions(record.settings, complete)
    legend = (
        f"{base['network']} on {base['data']}: {conditions}. "
        "Staleness: of the first stage, the mean. "
        f"Recorded on {record.date[:10]} with torch {record.versions['torch']}, trained on "
        f"{_processors(record, complete)}."
    )
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def _processors(record: Record, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the processors on which the results of these rows were trained."""
    runs = (run for row in rows for run in row["runs"] if is_chosen(row, run))
    names = sorted({run["source"]["cpu"] for run in runs} - {""})
    return " and ".join(names) or str(record.machine["cpu"])


def _conditions(settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a description of the seeds and the learning rates of a study's results."""
    seeds = settings["seeds"]
    numbers = ", ".join(map(str, seeds))
    over = f"mean and standard deviation over the seeds {numbers}"
    if len(seeds) == 1:
        over = f"one seed, {numbers}"
    if all(len(row["sweep"]) > 1 for row in rows):
        share = settings.get("hold_out_for_sweep")
        by = f", by {share:g} of the training examples that was held out" if share else ""
        return f"{over}, each row at its best learning rate of those tried{by}"
    rates = sorted({row["learning_rate"] for row in rows} - {None})  # of the optimizer's own
    return f"{over}, at the learning rate {' or '.join(map(str, rates))}" if rates else over


def _method_and_stages(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the label of the method of a row, and its number of stages."""
    options = vars(RunConfig()) | row["options"]
    return Named.parse(options["method"]).label, str(options["stages"])


def _choose(rows: Sequence[dict[str, Any]], chosen: str) -> Sequence[dict[str, Any]]:
    """Return the rows of these numbers.

    Raises:
        DataError: There is no row of such a number.
    """
    try:
        numbered = dict(enumerate(rows, 1))
        return [numbered[int(number)] for number in chosen.split(",")]
    except (KeyError, ValueError):
        raise DataError(
            f"the study has no rows {chosen!r}; use numbers from 1 to {len(rows)}, such as 1,3"
        ) from None
