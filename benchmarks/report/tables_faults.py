"""The table of faults that were tried."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.faults.promise import PROMISES
from benchmarks.harness.record import Record
from benchmarks.report.markdown import lines_of

Row = Mapping[str, Any]


def faults_table(record: Record) -> str:
    """One line for each kind of fault, and one for each kind of damage."""
    heads = (
        "fault", "the job", "tried", "as promised", "stage named", "noticed after, s",
        "going on after, s", "ticks done again",
    )  # fmt: skip
    lines = []
    for kind in dict.fromkeys(row["row"] for row in record.rows):
        mine = [row for row in record.rows if row["row"] == kind]
        if kind not in PROMISES:
            (row,) = mine
            lines.append((kind, "refuses it", *_counts(row), *["-"] * 4))
            continue
        named = sum(row["named"] for row in mine) if PROMISES[kind].says else None
        lines.append(
            (
                kind,
                PROMISES[kind].job,
                str(len(mine)),
                str(sum(not row["broken"] for row in mine)),
                "-" if named is None else str(named),
                *(_spread(mine, name, form) for name, form in _FIGURES),
            )
        )
    legend = (
        "Trainings of {methods} in 1 to {stages} stages, each a process, with short time- "
        "outs, to which a fault happens at a stage and a tick by chance. As promised: what "
        "the second column says, with the exit code that is said of it, the same bits at "
        "the end as without the fault, and no process left; what ends was then resumed. "
        "Median and maximum: from the fault to the end of all processes, from there to the "
        "next action, and how many ticks the stage had to do again."
    ).format(**(record.settings | {"methods": ", ".join(record.settings["methods"])}))
    return f"{lines_of(heads, lines)}\n\n{legend}"


_FIGURES = (("detected_s", "{:.1f}"), ("again_s", "{:.1f}"), ("lost", "{:.0f}"))


def promises() -> str:
    """What is promised: one line for each kind of fault."""
    lines = [
        (kind, own.what, own.job, ", ".join(map(str, own.codes)) or "-")
        for kind, own in PROMISES.items()
    ]
    return lines_of(("fault", "what happens", "the job", "exit code"), lines)


def _counts(row: Row) -> tuple[str, str]:
    return str(row["tried"]), str(row["refused"])


def _spread(rows: Sequence[Row], name: str, form: str) -> str:
    """Median and maximum of what there is."""
    there = [row[name] for row in rows if row[name] is not None]
    if not there:
        return "-"
    return f"{form.format(median(there))}, {form.format(max(there))}"
