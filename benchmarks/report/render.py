"""Records as tables in Markdown, and those tables in the documents that quote them."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness.record import Record
from benchmarks.report.goals import goals
from benchmarks.report.markdown import lines_of, mean, percent
from benchmarks.report.pictures import PICTURES
from benchmarks.report.tables_faults import faults_table
from benchmarks.report.tables_free import (
    compression_table,
    kill_recovery_table,
    slowdown_table,
    straggler_table,
)
from benchmarks.report.tables_networks import curves_table, plan_table
from hocket.errors import DataError


def render(folder: Path, *, into: Path | None = None) -> None:
    """Write README.md and the picture of a record beside it.

    Args:
        folder: Where the record is.
        into: A document whose excerpt of this record, if there is one, is brought up to date.

    Raises:
        DataError: There is no record, or the document has no place for it.
    """
    record = Record.read(folder)
    shown = record_table(record)
    picture = PICTURES[record.name](record, folder / f"{record.name}.svg")
    text = f"# {record.name.capitalize()}\n\n{shown}\n\n![{record.name}]({picture.name})\n"
    (folder / "README.md").write_text(text, encoding="utf-8")
    if into is not None:
        insert(into, folder.name, shown)


def insert(markdown_file: Path, marker: str, shown: str) -> None:
    """Replace what stands between ``<!-- record: MARKER -->`` and ``<!-- end -->``.

    Raises:
        DataError: The document has no such place.
    """
    text = markdown_file.read_text(encoding="utf-8")
    if not (found := _place(marker).search(text)):
        raise DataError(
            f"{markdown_file} has no place for the record {marker!r}; write the two lines "
            f"<!-- record: {marker} --> and <!-- end --> where it shall stand"
        )
    new = f"{text[: found.start('shown')]}\n{shown}\n{text[found.end('shown') :]}"
    markdown_file.write_text(new, encoding="utf-8")


def stale(markdown_file: Path, records: Path) -> list[str]:
    """The records whose excerpts in a document are not what would be rendered now.

    Args:
        markdown_file: The document; it may have no excerpts at all.
        records: Where the folders of records are.

    Raises:
        DataError: The document quotes a record that does not exist.
    """
    text = markdown_file.read_text(encoding="utf-8")
    excerpts = ((found["marker"], found["shown"].strip()) for found in _place().finditer(text))
    return [
        marker
        for marker, shown in excerpts
        if shown != record_table(Record.read(records / marker))
    ]


def record_table(record: Record) -> str:
    """The rows of a record and, below them, where they come from.

    Raises:
        DataError: There are no tables for records of this name.
    """
    if record.name not in TABLES:
        raise DataError(f"no table for a record {record.name!r}; known are {', '.join(TABLES)}")
    return f"{TABLES[record.name](record)}\n\n{provenance(record)}"


def provenance(record: Record) -> str:
    """One line: command, code, date, versions and machine."""
    code = f"commit {record.commit[:12]}" if record.commit else "a tree without a commit"
    if record.dirty:
        code += " with changes"
    sources = dict.fromkeys([record.source, *(row.get("source", "") for row in record.rows)])
    code += f" (source {', '.join(filter(None, sources))})"
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    machine = record.machine
    allocator = [f"{name}={value}" for name, value in machine["allocator"].items()]
    return (
        f"Measured by `{record.command}` on {record.date[:10]} at {code}; {versions}; "
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_mib']} MiB, "
        f"threads: {machine['threads']}, allocator: {' '.join(allocator) or 'as installed'}."
    )


def _overhead(record: Record) -> str:
    """One line for each row of the record."""
    heads = (
        "method", "linearize", "ratio", "range", "goal", "ms/sample", "plain, ms/sample",
        "peak, MiB", "graphs", "inputs", "versions", "extra parameters",
    )  # fmt: skip
    lines = [
        (
            row["row"],
            row["linearize"] or "-",
            f"{row['ratio']:.3f}",
            f"{row['ratio_min']:.3f} to {row['ratio_max']:.3f}",
            _goal(row),
            f"{1000 * row['sample_s']:.3f}",
            f"{1000 * row['plain_sample_s']:.3f}",
            "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}",
            *(str(row[count]) for count in ("graphs", "inputs", "versions")),
            f"{row['extra_parameters'] / row['parameters']:.1%}",
        )
        for row in record.rows
    ]
    legend = (
        "Ratio: time of a step beside that of a plain PyTorch loop, median and range over "
        "pairs. Peak: memory that training adds. Graphs, inputs, versions: what the stages "
        "are predicted to hold, summed over the stages."
    )
    return f"{lines_of(heads, lines)}\n\n{legend}"


def _checkpoint(record: Record) -> str:
    """One line for each row of the record."""
    heads = (
        "row", "ratio", "range", "ms/step", "checkpoints", "ticks stand still, ms", "MiB",
        "whole save, ms",
    )  # fmt: skip
    batch = record.settings["batch"]
    lines = [
        (
            row["row"],
            f"{row['ratio']:.3f}",
            f"{row['ratio_min']:.3f} to {row['ratio_max']:.3f}",
            f"{1000 * batch * row['sample_s']:.1f}",
            str(row["checkpoints"]),
            *(
                "-" if value is None else f"{value:.1f}"
                for value in (
                    row["still_s"] and 1000 * row["still_s"],
                    row["mib"],
                    row["save_s"] and 1000 * row["save_s"],
                )
            ),
        )
        for row in record.rows
    ]
    legend = (
        "{network} on batches of {batch}, {method} on {stages} stages in one process. Ratio: "
        "time of a step beside that of the same training without checkpoints, median and range "
        "over {pairs} pairs of {steps} steps in turns. Ticks stand still while the state is "
        "copied, median; a whole save is that and the writing, down to the disk."
    ).format(**record.settings)
    return f"{lines_of(heads, lines)}\n\n{legend}"


def _goal(row: Mapping[str, Any]) -> str:
    """The goal and whether it is kept to."""
    if row["goal"] is None:
        return "-"
    return f"{row['goal']:.2f} {'met' if row['ratio'] <= row['goal'] else 'missed'}"


def _accuracy(record: Record) -> str:
    """One line for each method, after the last epoch."""
    heads = (
        "method", "batch per tick", "staleness of stage 0", "training loss", "test loss",
        "test error", "single seeds",
    )  # fmt: skip
    lines = []
    for label in dict.fromkeys(row["row"] for row in record.rows):
        mine = [row for row in record.rows if row["row"] == label]
        last = [
            row
            for row in mine
            if row["failure"] is None and row["epoch"] == record.settings["epochs"]
        ]
        broken = [
            f"seed {r['seed']} broke off in epoch {r['epoch']}" for r in mine if r["failure"]
        ]
        seeds = [percent(row["test_error"]) for row in last]
        lines.append(
            (
                label,
                str(mine[0]["batch_per_tick"]),
                mean([row["staleness"][0] for row in last], "{:.2f}"),
                mean([row["train_loss"] for row in last], "{:.3f}"),
                mean([row["test_loss"] for row in last], "{:.3f}"),
                mean([row["test_error"] for row in last], "{:.2%}"),
                ", ".join(seeds + broken),
            )
        )
    settings = record.settings
    legend = (
        "After the last of {epochs} epochs, mean over seeds: {network} on {data}, {stages} "
        "stages, SGD with rate {rate}, momentum {momentum}, weight decay {weight_decay}, "
        "{batch} samples in an update."
    ).format(**settings)
    return f"{lines_of(heads, lines)}\n\n{legend}"


def _speed(record: Record) -> str:
    """One line for each row of the record."""
    heads = (
        "row", "processes x threads", "samples/s", "ratio", "range", "of the limit",
        "CPU, ratio", "other threads", "sending", "waiting", "peak, MiB", "choices",
        "disturbed",
    )  # fmt: skip
    lines = [
        (
            row["row"],
            f"{row['processes']} x {row['threads']}",
            f"{row['samples_per_s']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}",
            f"{row['of_limit']:.2f}" if "of_limit" in row else "-",
            f"{row['cpu_ratio']:.2f}",
            f"{row['other_cpu']:.1%}",
            _shares(row["communication"]),
            _shares(row["waiting"]),
            _each(row["peak_mib"]),
            _choices(row["choices"]),
            str(row["disturbed"]),
        )
        for row in record.rows
    ]
    settings = record.settings
    legend = (
        "{network} on batches of {batch}, {stages} processes where several share them. Ratio: "
        "samples per second beside bp in the same round, median and range over {repetitions} "
        "rounds of {steps} steps; of the limit: the same beside independent processes, where "
        "they had their turns together. CPU: processor time of a sample in all processes, "
        "beside bp's; other threads: the part of it that is not the training's own thread, "
        "which is OpenMP's and that of messages. Sending, waiting: parts of the time of each "
        "process. Peak: of each process, without PyTorch itself. Disturbed: rounds in which "
        "others used more than {foreign:.0%} of the machine however often they were repeated."
    ).format(**settings)
    asked = goals(record.rows)
    return "\n\n".join([lines_of(heads, lines), legend, *([asked] if asked else [])])


def _link(record: Record) -> str:
    """One line for each row, a column for each rate."""
    settings = record.settings
    rates = settings["mbit_s"]
    by_row: dict[str, dict[float, Mapping[str, Any]]] = {}
    for row in record.rows:
        by_row.setdefault(row["row"], {})[row["mbit_s"]] = row
    speeds = [f"{rate:g} Mbit/s" for rate in rates]
    heads = ("row", "nodes", *speeds, "sent, MiB/step", "choices")
    lines = []
    for label, found in by_row.items():
        first = found[rates[0]]
        times = [
            f"{one['ms_per_sample']:.2f} ({one['ms_min']:.2f} to {one['ms_max']:.2f})"
            for one in (found[rate] for rate in rates)
        ]
        sent = f"{fmean(max(one['sent_mib']) for one in found.values()):.1f}"
        choices = _choices(first["choices"])
        lines.append((label, str(first["processes"]), *times, sent, choices))
    legend = (
        "Milliseconds for a sample, median and range over {repetitions} rounds: {network} with "
        "{parameters:,} parameters on batches of {batch}. Two nodes of one process with "
        "{threads} thread each, joined by a link of this rate each way; a row of one node uses "
        "none. Sent: by the busier node, with all headers."
    ).format(**settings)
    return f"{lines_of(heads, lines)}\n\n{legend}"


def _stages(record: Record) -> str:
    """One line for each number of stages and row."""
    heads = (
        "stages", "row", "ticks/s", "waiting of each stage", "computed: times bp",
        "computed: waiting of each stage", "choices",
    )  # fmt: skip
    lines = [
        (
            str(row["stages"]),
            row["row"],
            f"{row['ticks_per_s']:.2f}",
            _shares(row["waiting"]),
            f"{row['computed_speed_up']:.2f}",
            _shares(row["computed_waiting"]),
            _choices(row["choices"]),
        )
        for row in record.rows
    ]
    settings = record.settings | {"cores": record.machine["cores"]}
    legend = (
        "{network} on batches of {batch}. Ticks and waiting are measured with a process for "
        "each stage on {cores} cores, which more stages have to share: median of {repetitions} "
        "times {steps} steps. Computed, not measured: what a core for each stage would give, "
        "from the times of the stages one after the other in one process, the program's order "
        "and packets that take no time; beside a plain loop in the same process."
    ).format(**settings)
    return f"{lines_of(heads, lines)}\n\n{legend}"


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares) or "-"


def _each(numbers: Sequence[float]) -> str:
    """The number of each process, once if all are nearly the same.

    >>> _each([300.1, 300.4]), _each([300.1, 200.0])
    ('300', '300, 200')
    """
    return ", ".join(dict.fromkeys(f"{number:.0f}" for number in numbers))


def _choices(choices: Mapping[str, Any]) -> str:
    """What was chosen for a row beside its options."""
    if "cuts" in choices:
        delay = f", delay {choices['delay']}" if "delay" in choices else ""
        return f"cut at {', '.join(choices['cuts'])}{delay}"
    return ", ".join(f"{name}={value}" for name, value in choices.items()) or "-"


def _place(marker: str | None = None) -> re.Pattern[str]:
    """Where an excerpt stands; any, if no marker is named."""
    name = r"[^\s>]+" if marker is None else re.escape(marker)
    return re.compile(
        rf"<!-- record: (?P<marker>{name}) -->(?P<shown>.*?)<!-- end -->", re.DOTALL
    )


TABLES: Mapping[str, Callable[[Record], str]] = {
    "overhead": _overhead,
    "accuracy": _accuracy,
    "speed": _speed,
    "link": _link,
    "stages": _stages,
    "slowdown": slowdown_table,
    "compression": compression_table,
    "pace": straggler_table,
    "checkpoint": _checkpoint,
    "faults": faults_table,
    "curves": curves_table,
    "plan": plan_table,
    "rejoin": kill_recovery_table,
}
