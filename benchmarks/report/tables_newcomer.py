"""Table of the first commands of a newcomer, and what they print."""

from benchmarks.harness.record import Record
from benchmarks.report.markdown import markdown_table

MOST_LINES = 24
"""Lines of an output that are shown; of a longer one its first and its last lines."""


def newcomer_table(record: Record) -> str:
    """Return a table with a line for each command, and the outputs below it."""
    heads = ("command", "time, s", "processor time, s", "exit code")
    lines = [
        (
            f"`{row['row']}`",
            f"{row['wall_s']:.1f}",
            f"{row['cpu_s']:.1f}",
            str(row["exit_code"]),
        )
        for row in record.rows
    ]
    outputs = [
        f"`{row['row']}`\n\n```text\n{shorten(row['output'])}\n```" for row in record.rows
    ]
    legend = (
        "Each command ran once, in this order, in a folder that was empty before, with "
        "{threads} thread for each process and files in the page cache. Time: from start to "
        "end, with the import of PyTorch."
    ).format(**record.settings)
    return "\n\n".join([markdown_table(heads, lines), legend, *outputs])


def shorten(output: list[str]) -> str:
    """Return the lines of an output as one text, without those in the middle of a long one.

    >>> shorten([str(number) for number in range(100)]).splitlines()[10:13]
    ['10', '11', '... (77 lines)']
    """
    if len(output) <= MOST_LINES:
        return "\n".join(output)
    first, last = output[: MOST_LINES // 2], output[1 - MOST_LINES // 2 :]
    return "\n".join([*first, f"... ({len(output) - len(first) - len(last)} lines)", *last])
