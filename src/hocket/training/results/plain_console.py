"""Consoles on standard output and error that print text as it is."""

from typing import IO, Any, cast

from rich.console import Console
from rich.text import Text

from hocket.errors import escape_controls
from hocket.standard_stream import StandardStream, StreamName


class _PlainConsole(Console):
    def render_str(self, text: str, **style: Any) -> Text:
        return super().render_str(escape_controls(text), **style)


def plain_console(name: StreamName, width: int | None = None) -> Console:
    """Build a console on a standard stream that prints text as it is, without markup.

    Control characters in it, which might command the terminal, are shown as escapes. Its lines
    are as wide as the terminal, or have `width` letters.
    """
    stream = cast("IO[str]", StandardStream(name))
    return _PlainConsole(file=stream, width=width, markup=False, emoji=False)
