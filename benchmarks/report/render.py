"""Records rendered as Markdown, and their excerpts in documents.

A document quotes a record between ``<!-- record: MARKER -->`` and ``<!-- end -->``. The marker
of a whole table is the name of the record's folder. For a record of speed the marker may name
rows, for a short table of these: ``speed rows=bp,fdg order=forward-first``; for a study their
numbers, ``gpt-characters-2000 rows=1,3``. ``target rows=short`` is a short table of all rows.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from benchmarks.harness.record import Record
from benchmarks.report import pictures
from benchmarks.report.tables_faults import (
    faults_table,
    integrations_table,
    kill_recovery_table,
    newcomer_table,
    versions_table,
)
from benchmarks.report.tables_speed import (
    checkpoint_table,
    gpu_table,
    idle_link_table,
    link_table,
    memory_table,
    overhead_table,
    speed_excerpt,
    speed_table,
)
from benchmarks.report.tables_studies import short_study_table
from benchmarks.report.target import short_target_table, target_table
from hocket.errors import DataError
from hocket_lab.studies.pictures import draw_curves
from hocket_lab.studies.record import NAME as SWEEP
from hocket_lab.studies.record import PICTURE, SweepRecord
from hocket_lab.studies.report import provenance as study_provenance
from hocket_lab.studies.report import results_with_legend


def render(folder: Path, *, into: Path | None = None) -> None:
    """Write README.md next to a record, and the picture of one that has some.

    Args:
        folder: Folder of the record.
        into: A document whose excerpts of this record are updated.

    Raises:
        DataError: There is no record, or the document has no excerpt of it.
    """
    record = Record.read(folder)
    if record.name == SWEEP:
        study = SweepRecord.read(folder)
        draw_curves(study.values, folder / PICTURE)
        study.write()
    else:
        text = f"# {record.name.capitalize()}\n\n{record_table(record)}\n"
        if (draw := VIEWS[record.name].picture) is not None:
            picture = pictures.save_svg(draw(record), folder / f"{record.name}.svg")
            text += f"\n![{record.name}]({picture.name})\n"
        (folder / "README.md").write_text(text, encoding="utf-8")
    if into is not None:
        found = _excerpt_pattern().finditer(into.read_text(encoding="utf-8"))
        markers = [match["marker"] for match in found]
        of_record = [marker for marker in markers if marker.split(" ")[0] == folder.name]
        for marker in of_record or [folder.name]:
            insert_excerpt(into, marker, excerpt(marker, folder.parent))


def insert_excerpt(markdown_file: Path, marker: str, shown: str) -> None:
    """Replace the text between ``<!-- record: MARKER -->`` and ``<!-- end -->``.

    Raises:
        DataError: The document has no such marker.
    """
    text = markdown_file.read_text(encoding="utf-8")
    if not (match := _excerpt_pattern(marker).search(text)):
        raise DataError(
            f"{markdown_file} has no place for the record {marker!r}; write the two lines "
            f"<!-- record: {marker} --> and <!-- end --> where it should be"
        )
    new = f"{text[: match.start('shown')]}\n{shown}\n{text[match.end('shown') :]}"
    markdown_file.write_text(new, encoding="utf-8")


def stale_excerpts(markdown_file: Path, records: Path) -> list[str]:
    """Return the markers of excerpts in a document that differ from what would be rendered.

    Raises:
        DataError: The document quotes a record that does not exist.
    """
    text = markdown_file.read_text(encoding="utf-8")
    excerpts = (
        (found["marker"], found["shown"].strip()) for found in _excerpt_pattern().finditer(text)
    )
    return [marker for marker, shown in excerpts if shown != excerpt(marker, records)]


def excerpt(marker: str, records: Path) -> str:
    """Return the text of an excerpt: the table of a record, or a short one of some rows.

    Raises:
        DataError: There is no such record, row or table.
    """
    folder, _, rows = marker.partition(" rows=")
    record = Record.read(records / folder)
    if not rows:
        return record_table(record)
    if record.name == SWEEP:
        return short_study_table(record, rows)
    if (record.name, rows) == ("target", "short"):
        return short_target_table(record)
    if record.name != "speed":
        raise DataError(f"no short table for a record {record.name!r}; leave out 'rows={rows}'")
    return speed_excerpt(record, rows.split(","))


def record_table(record: Record) -> str:
    """Return the table of a record with its provenance below.

    Raises:
        DataError: There is no table for records of this name.
    """
    if record.name not in VIEWS:
        raise DataError(f"no table for a record {record.name!r}; known are {', '.join(VIEWS)}")
    made = study_provenance(vars(record)) if record.name == SWEEP else provenance(record)
    return f"{VIEWS[record.name].table(record)}\n\n{made}"


def provenance(record: Record) -> str:
    """Return command, code, date, versions and machine of a record as one line."""
    code = f"commit {record.commit[:12]}" if record.commit else "a tree without a commit"
    if record.dirty:
        code += " with changes"
    sources = dict.fromkeys([record.source, *(row.get("source", "") for row in record.rows)])
    code += f" (source {', '.join(filter(None, sources))})"
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    machine = record.machine
    allocator = [f"{name}={value}" for name, value in machine["allocator"].items()]
    processors = ", ".join(filter(None, [machine["cpu"], machine.get("gpu")]))
    return (
        f"Measured by `{record.command}` on {record.date[:10]} at {code}; {versions}; "
        f"{processors}, {machine['cores']} cores, {machine['memory_mib']} MiB, "
        f"threads: {machine['threads']}, allocator: {' '.join(allocator) or 'as installed'}."
    )


def _excerpt_pattern(marker: str | None = None) -> re.Pattern[str]:
    """Return the pattern of an excerpt; of any excerpt if the marker is None."""
    name = r"[^\s>]+(?: rows=[^>]+?)?" if marker is None else re.escape(marker)
    return re.compile(
        rf"<!-- record: (?P<marker>{name}) -->(?P<shown>.*?)<!-- end -->", re.DOTALL
    )


class View(NamedTuple):
    """Table of a record, and its picture if it has one."""

    table: Callable[[Record], str]
    picture: Callable[[Record], Figure] | None = None


VIEWS: Mapping[str, View] = {
    "overhead": View(overhead_table, pictures.draw_ratios),
    "speed": View(speed_table, pictures.draw_ratios),
    "link": View(link_table, pictures.draw_link),
    "idle-link": View(idle_link_table),
    "checkpoint": View(checkpoint_table, pictures.draw_ratios),
    "fault-injection": View(faults_table),
    "kill-recovery": View(kill_recovery_table),
    "gpu": View(gpu_table, pictures.draw_ratios),
    "gpu-graphs": View(gpu_table, pictures.draw_ratios),
    "memory": View(memory_table, pictures.draw_memory),
    "target": View(target_table, pictures.draw_target),
    "versions": View(versions_table),
    "integrations": View(integrations_table),
    "newcomer": View(newcomer_table),
    # An earlier name.
    "rejoin": View(kill_recovery_table),
    SWEEP: View(lambda record: results_with_legend(vars(record))),
}
