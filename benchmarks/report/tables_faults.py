"""Tables of injected faults, killed stages, tests under other versions, and integrations."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.faults.expectations import EXPECTATIONS
from benchmarks.harness.record import Record
from benchmarks.report.markdown import NONE, Row, markdown_table, mean, table


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
            counts = str(row["tried"]), str(row["refused"])
            lines.append((kind, "refuses it", *counts, *[NONE] * 4))
            continue
        named = sum(row["named"] for row in mine)
        lines.append(
            (
                kind,
                EXPECTATIONS[kind].ending,
                str(len(mine)),
                str(sum(not row["broken"] for row in mine)),
                str(named) if EXPECTATIONS[kind].message else NONE,
                _format_spread(mine, "detected_s", "{:.1f}"),
                _format_spread(mine, "again_s", "{:.1f}"),
                _format_spread(mine, "lost", "{:.0f}"),
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


def expectations_table() -> str:
    """Return a table of the guarantees, a line for each kind of fault."""
    lines = [
        (kind, one.description, one.ending, ", ".join(map(str, one.exit_codes)) or NONE)
        for kind, one in EXPECTATIONS.items()
    ]
    return markdown_table(("fault", "what happens", "the job", "exit code"), lines)


def kill_recovery_table(record: Record) -> str:
    """Return a table with a line for each method and killed stage."""
    cases: dict[tuple[str, int | None], list[Row]] = {}
    for row in record.rows:
        cases.setdefault((row["row"], row["victim"]), []).append(row)

    def average(name: str, form: str) -> Any:
        return lambda case: mean([row[name] for row in case["rows"]], form)

    def errors(case: Row) -> str:
        found = [row["test_error"] for row in case["rows"]]
        single = [NONE if error is None else f"{error:.2%}" for error in found]
        return f"{mean(found, '{:.2%}')} ({', '.join(single)})"

    shown = table(
        [
            {
                "row": row,
                "victim": "nobody" if victim is None else f"stage {victim}",
                "rows": of,
            }
            for (row, victim), of in cases.items()
        ],
        ("method", "{row}"),
        ("killed", "{victim}"),
        ("learned again, by it", average("turns_again", "{:.0f}")),
        ("by the others", average("others_again", "{:.0f}")),
        ("packets lost", average("packets_lost", "{:.0f}")),
        ("orphaned", average("packets_orphaned", "{:.0f}")),
        ("away, s", average("away_s", "{:.1f}")),
        ("others learned meanwhile", average("others_learned", "{:.0f}")),
        ("whole training, s", average("seconds", "{:.1f}")),
        ("test error", errors),
    )
    legend = (
        "Means over seeds, test errors of single seeds too: {network} on {data}, {stages} "
        "processes, {epochs} epochs, checkpoints every {every} batches; a stage is killed by "
        "SIGKILL once it has learned from batch {killed_at}. Learned again: batches, or turns "
        "of a stage that runs freely. Lost: packets that were under way or in the process that "
        "was killed. Orphaned: packets of turns that the stage before has taken again. Away: "
        "from the kill until that stage learns from the next batch."
    ).format(**record.settings)
    return f"{shown}\n\n{legend}"


def versions_table(record: Record) -> str:
    """Return a table with a line for each interpreter, and the failed tests below it."""
    shown = table(
        record.rows,
        ("Python", "{python}"),
        ("PyTorch", "{torch}"),
        ("NumPy", "{numpy}"),
        ("passed", "{passed}"),
        ("failed", "{failed}"),
        ("skipped", "{skipped}"),
        ("commit", lambda row: str(row["commit"])[:12]),
    )
    tests = ", ".join(f"`{test}`" for test in record.settings["tests"])
    failures = [
        f"* Python {row['python']} with PyTorch {row['torch']}: `{name}`"
        for row in record.rows
        for name in row["failures"]
    ]
    failed = "Failed:\n\n" + "\n".join(failures) if failures else ""
    return "\n\n".join(filter(None, [shown, f"Numbers of tests, of {tests}.", failed]))


def integrations_table(record: Record) -> str:
    """Return a table with a line for each integration."""
    return table(
        record.rows,
        ("trained with", "{row}"),
        ("versions", lambda row: ", ".join(row["versions"]) or NONE),
        ("lines of a program that change", "{change}"),
        ("passed", "{passed}"),
        ("failed", "{failed}"),
        ("skipped", "{skipped}"),
    )


def newcomer_table(record: Record) -> str:
    """Return a table with a line for each step of a newcomer."""
    return table(record.rows, ("step", "`{row}`"), ("seconds", "{wall_s:.0f}"))


def _format_spread(rows: Sequence[Row], name: str, form: str) -> str:
    """Return median and maximum of the values that are not None."""
    known = [row[name] for row in rows if row[name] is not None]
    return f"{form.format(median(known))}, {form.format(max(known))}" if known else NONE
