"""Consoles of the command line; errors and warnings as one line, and as an exit code.

Text is printed as it is: names of files and options are no markup.
"""

import sys
from typing import Any

from rich.console import RenderableType

from hocket.errors import HocketError, PeerFailedError
from hocket.training.standard_stream import plain_console

console = plain_console("stdout")
messages = plain_console("stderr")


def print_result(text: str) -> None:
    """Print a text to standard output, as it is, in no colour."""
    console.print(text, highlight=False, soft_wrap=True)


def print_note(text: str, style: str | None = None) -> None:
    """Print a text to standard error as it is, in the colour of a style."""
    messages.print(text, style=style, highlight=False, soft_wrap=True)


def print_wide(*tables: RenderableType) -> None:
    """Print tables at the width of the terminal, or at 150 columns where there is none."""
    wide = console if console.is_terminal else plain_console("stdout", max(console.width, 150))
    for table in tables:
        wide.print(table)


def end_with_error(error: HocketError) -> int:
    """Print an error and return its exit code.

    Of several processes only the first to fail prints. A process that others train with is
    ended here: threads that wait for packets would hold it.
    """
    if "hocket.distributed.joined_worlds" not in sys.modules:  # no other process knows this one
        return print_error(error)
    from hocket.distributed import joined_worlds

    first = joined_worlds.report_failure(error)
    if not first:
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
