"""Consoles of the command line; errors and warnings as one line, and as an exit code.

Text is printed as it is: names of files and options are no markup.
"""

import os
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from hocket.errors import HocketError, PeerFailedError
from hocket.training.results.plain_console import plain_console

console = plain_console("stdout")
messages = plain_console("stderr")
PIPE_WIDTH = 150
"""Width of tables that are not written to a terminal."""
PROSE_WIDTH = 16
"""Least width of a column of prose."""


def print_result(text: str) -> None:
    """Print a text to standard output, as it is, in no colour."""
    console.print(text, highlight=False, soft_wrap=True)


def print_note(text: str, style: str | None = None) -> None:
    """Print a text to standard error as it is, in the colour of a style."""
    messages.print(text, style=style, highlight=False, soft_wrap=True)


def print_tables(*tables: Table) -> None:
    """Print tables at the width of the terminal or of COLUMNS, or else at 150 columns.

    A column with the overflow ``fold`` is prose, whose lines may break. A table whose other
    cells do not fit is printed as a block of lines for each row.
    """
    wide = console
    if not console.is_terminal:
        wide = plain_console("stdout", None if "COLUMNS" in os.environ else PIPE_WIDTH)
    for table in tables:
        unbounded = wide.options.update(max_width=10**5)
        natural = wide.measure(table, options=unbounded).maximum
        if natural > wide.width and _narrow(table) > wide.width:
            _print_blocks(wide, table)
        else:
            wide.print(table)


def _narrow(table: Table) -> int:
    """Let only prose and headings of a table break, and return its least width."""
    width = 1
    for column in table.columns:
        if column.overflow == "fold":
            width += PROSE_WIDTH + 3
            continue
        column.no_wrap, column.header = True, str(column.header).replace(" ", "\n")
        lines = [*column.header.splitlines(), *map(str, column.cells)]
        width += max(map(len, lines)) + 3
    return width


def _print_blocks(wide: Console, table: Table) -> None:
    """Print the title of a table, a block of lines for each row, and the caption."""
    if table.title:
        wide.print(table.title, style="italic")
    heads = [str(column.header).replace("\n", " ") for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        lines = [f"{head}: {cell}" for head, cell in zip(heads, row, strict=True) if cell]
        wide.print("\n  ".join(lines), highlight=False)
    if table.caption:
        wide.print(table.caption, style="dim")


def end_with_error(error: HocketError) -> int:
    """Print an error and return its exit code.

    Of several processes only the first to fail prints. A process that others train with is
    ended here: threads that wait for packets would hold it.
    """
    # Without a world, no other process knows this one.
    if "hocket.distributed.world.joined_worlds" not in sys.modules:
        return print_error(error)
    from hocket.distributed.world import joined_worlds

    if not joined_worlds.report_failure(error):  # another one was first
        code = PeerFailedError.exit_code
    elif joined_worlds.report_symptom(error, f"error: {_full_text(error)}\n"):
        code = _exit_code(error)
    else:
        code = print_error(error)
    joined_worlds.exit_process(code)
    return code


def print_error(error: Exception) -> int:
    """Print an error with its notes and return its exit code."""
    print_note(f"error: {_full_text(error)}", "red")
    return _exit_code(error)


def _full_text(error: Exception) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def _exit_code(error: Exception) -> int:
    return int(getattr(type(error), "exit_code", 2))


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning; for `warnings.showwarning`."""
    print_note(f"warning: {message}", "yellow")
