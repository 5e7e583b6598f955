"""Tables of injected faults, and of long trainings."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.faults.expectations import EXPECTATIONS
from benchmarks.harness.record import Record
from benchmarks.report.markdown import markdown_table

Row = Mapping[str, Any]


def faults_table(record: Record) -> str:
    """Return a table with a line for each kind of fault, and for each kind of corruption."""
    heads = (
        "fault", "the job", "tried", "as promised", "stage named", "noticed after, s",
        "going on after, s", "ticks done again",
    )  # fmt: skip
    lines = []
    for kind in dict.fromkeys(row["row"] for row in record.rows):
        mine = [row for row in record.rows if row["row"] == kind]
        if kind not in EXPECTATIONS:
            (row,) = mine
            lines.append((kind, "refuses it", *_format_counts(row), *["-"] * 4))
            continue
        named = sum(row["named"] for row in mine) if EXPECTATIONS[kind].message else None
        lines.append(
            (
                kind,
                EXPECTATIONS[kind].ending,
                str(len(mine)),
                str(sum(not row["broken"] for row in mine)),
                "-" if named is None else str(named),
                *(_format_spread(mine, name, form) for name, form in _FIGURES),
            )
        )
    legend = (
        "Trainings of {methods} in 1 to {stages} stages, each a process, with short "
        "time-outs, to which a fault happens at a stage and a tick by chance. As promised: "
        "what the second column says, with the exit code that is said of it, the same bits at "
        "the end as without the fault, and no process left; what ends was then resumed. "
        "Median and maximum: from the fault to the end of all processes, from there to the "
        "next action, and how many ticks the stage had to do again."
    ).format(**(record.settings | {"methods": ", ".join(record.settings["methods"])}))
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def endurance_table(record: Record) -> str:
    """Return a table with a line for each training."""
    heads = (
        "training", "ticks", "memory, MiB", "growth, bytes/tick", "threads", "descriptors",
    )  # fmt: skip
    lines = [
        (
            row["row"],
            str(row["ticks"]),
            f"{row['memory_mib'][0]:.1f} to {row['memory_mib'][-1]:.1f}",
            f"{row['growth_bytes']:.1f}",
            *(f"{row[name][0]} to {row[name][-1]}" for name in ("threads", "descriptors")),
        )
        for row in record.rows
    ]
    legend = (
        "Counted {samples} times in equal distances, first to last; of several processes the "
        "one whose memory grows most. Growth: over the second half of the ticks."
    ).format(**record.settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


_FIGURES = (("detected_s", "{:.1f}"), ("again_s", "{:.1f}"), ("lost", "{:.0f}"))


def expectations_table() -> str:
    """Return a table of the guarantees, a line for each kind of fault."""
    lines = [
        (kind, one.description, one.ending, ", ".join(map(str, one.exit_codes)) or "-")
        for kind, one in EXPECTATIONS.items()
    ]
    return markdown_table(("fault", "what happens", "the job", "exit code"), lines)


def _format_counts(row: Row) -> tuple[str, str]:
    return str(row["tried"]), str(row["refused"])


def _format_spread(rows: Sequence[Row], name: str, form: str) -> str:
    """Return median and maximum of the values that are not None."""
    known = [row[name] for row in rows if row[name] is not None]
    if not known:
        return "-"
    return f"{form.format(median(known))}, {form.format(max(known))}"
