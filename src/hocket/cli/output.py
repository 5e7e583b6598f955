"""Consoles of the command line; errors and warnings as one line, and as an exit code."""

import sys
from typing import Any

from rich.console import Console

from hocket.errors import HocketError, PeerFailedError

console = Console()
messages = Console(stderr=True)


def end_with_error(error: HocketError) -> int:
    """Print an error and return its exit code.

    Of several processes only the first to fail prints. A process that others train with is
    ended here: threads that wait for packets would hold it.
    """
    if "hocket.distributed.world" not in sys.modules:  # no other process knows this one
        return print_error(error)
    from hocket.distributed import world

    code = print_error(error) if world.report_failure(error) else PeerFailedError.exit_code
    world.exit_process(code)
    return code


def print_error(error: Exception) -> int:
    """Print an error with its notes and return its exit code."""
    message = "\n".join([str(error), *getattr(error, "__notes__", [])])
    _print_line(f"error: {message}", "red")
    return int(getattr(type(error), "exit_code", 2))


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning; for `warnings.showwarning`."""
    _print_line(f"warning: {message}", "yellow")


def _print_line(text: str, style: str) -> None:
    messages.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
