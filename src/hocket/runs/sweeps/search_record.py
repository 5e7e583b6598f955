"""Record of a search: the trials of each row, and the best of them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.errors import RunFolderError
from hocket.files import write_text_atomically
from hocket.runs.config import plain_values
from hocket.runs.sweeps.record import (
    cannot_write_study,
    record_head,
    study_command,
    train_command_line,
)
from hocket.runs.sweeps.report import NONE, markdown_table, provenance
from hocket.runs.sweeps.results import RunOutcome
from hocket.runs.sweeps.rows import Row
from hocket.runs.sweeps.study import Study

FILE, REPORT = "search.json", "SEARCH.md"


@dataclass(frozen=True)
class Trial:
    """A trial of a row.

    Attributes:
        number: Its number, in the order in which trials began.
        values: Values of the options that are searched, by their names.
        state: ``complete``, ``fail`` or ``running``.
        value: Last value of the metric of the study; infinity if the run diverged, None if it
            has not ended or failed.
        outcome: Outcome of its run.
    """

    number: int
    values: Mapping[str, Any]
    state: str
    value: float | None
    outcome: RunOutcome


@dataclass(frozen=True)
class SearchRecord:
    """Record of a search, in the folder of its study.

    Attributes:
        folder: Folder of the study.
        values: Command, commit, versions, machine, settings and rows, as plain JSON.
        stopped_by: Number of the signal that stopped the search; 0 if none did.
    """

    folder: Path
    values: dict[str, Any]
    stopped_by: int = 0

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the record, each with its trials and the best of them."""
        rows: list[dict[str, Any]] = self.values["rows"]
        return rows

    def write(self) -> None:
        """Write ``search.json`` and the report ``SEARCH.md`` into the folder.

        Raises:
            RunFolderError: They cannot be written.
        """
        try:
            text = json.dumps(self.values, indent=1, allow_nan=False) + "\n"
            write_text_atomically(self.folder / FILE, text)
            write_text_atomically(self.folder / REPORT, search_report(self.values))
        except OSError as error:
            raise RunFolderError(cannot_write_study(self.folder, error)) from error


def build_search_record(
    study: Study,
    folder: Path,
    rows: Sequence[tuple[Row, Sequence[Trial]]],
    stopped_by: int,
) -> SearchRecord:
    """Build the record of a search.

    Args:
        study: The study.
        folder: Its folder.
        rows: Rows of the study with their trials.
        stopped_by: Number of the signal that stopped the search; 0 if none did.
    """
    configs = [trial.outcome.run.config for _, trials in rows for trial in trials]
    most = max((len(trials) for _, trials in rows), default=0)
    values = record_head(study, study_command(study, most), configs) | {"name": "search"}
    values["rows"] = [_row(row, trials) for row, trials in rows]
    return SearchRecord(folder, plain_values(values), stopped_by)


def _row(row: Row, trials: Sequence[Trial]) -> dict[str, Any]:
    ended = [t for t in trials if t.value is not None and math.isfinite(t.value)]
    best = min(ended, key=lambda t: (t.value or 0.0, t.number), default=None)
    return {
        "row": row.label,
        "best": None if best is None else best.number,
        "trials": [_trial(each) for each in trials],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    result = trial.outcome.result
    diverged = result is not None and result.state == "diverged"
    return {
        "number": trial.number,
        "values": dict(trial.values),
        "state": "diverged" if diverged else trial.state,
        "value": trial.value,
        "message": "" if result is None else result.message,
        "folder": f"runs/{trial.outcome.run.name}",
        "command": train_command_line(trial.outcome.run.config),
    }


def best_table(values: Mapping[str, Any]) -> str:
    """Return the table of the best trial of each row, as Markdown.

    Args:
        values: The record as plain values.
    """
    metric = values["settings"]["select"]
    lines = []
    for row in values["rows"]:
        tried = str(len(row["trials"]))
        if row["best"] is None:
            lines.append([row["row"], tried, NONE, NONE])
            continue
        best = next(each for each in row["trials"] if each["number"] == row["best"])
        lines.append([row["row"], tried, _listed(best["values"]), f"{best['value']:.4f}"])
    return markdown_table(["row", "trials", "best values", metric], lines)


def search_report(values: Mapping[str, Any]) -> str:
    """Return the report of a search as Markdown.

    Args:
        values: The record as plain values.
    """
    settings = values["settings"]
    parts = [f"# Search of {settings['name']}", best_table(values)]
    share = settings["hold_out_for_sweep"]
    by = f", and of {share:.4g} of the training examples, which were held out" if share else ""
    parts.append(
        f"The best trial of a row has the least last `{settings['select']}`, of one run with "
        f"one seed{by}. The least of many such values is too good by some of their spread: run "
        "the best values with other seeds before you compare them."
    )
    for row in values["rows"]:
        lines = [
            [
                str(each["number"]),
                _listed(each["values"]),
                each["state"]
                + (f": {each['message'].splitlines()[0]}" if each["message"] else ""),
                NONE if each["value"] is None else f"{each['value']:.4f}",
                f"`{each['command']}`",
            ]
            for each in row["trials"]
        ]
        header = ["trial", "values", "state", settings["select"], "command"]
        parts += [f"## {row['row']}", markdown_table(header, lines)]
    return "\n\n".join([*parts, provenance({**values, "rows": []})]) + "\n"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )
