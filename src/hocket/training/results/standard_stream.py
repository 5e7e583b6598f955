"""Standard output and error whose failure ends nothing: a closed terminal, a full disk."""

import os
import sys
from contextlib import suppress
from io import TextIOBase
from typing import IO, Any, Literal, TypeAlias, cast

from rich.console import Console
from rich.text import Text

from hocket.errors import escape_controls

StreamName: TypeAlias = Literal["stdout", "stderr"]


class StandardStream(TextIOBase):
    """Standard output or error, as it is at each call.

    Letters that its encoding lacks are written as escapes. What cannot be written is dropped:
    a training and its results do not depend on anybody who reads along.

    Args:
        name: Name of the stream in `sys`.
    """

    def __init__(self, name: StreamName) -> None:
        self._name = name

    def _stream(self) -> IO[str] | None:
        """Return the stream itself, not the proxy that a bar on the terminal puts before it."""
        stream = getattr(sys, self._name)
        return cast("IO[str] | None", getattr(stream, "rich_proxied_file", stream))

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property is an attribute
        """Encoding of the stream."""
        return getattr(self._stream(), "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        stream = self._stream()
        with suppress(ValueError):  # it is closed
            return stream is not None and stream.isatty()
        return False

    def fileno(self) -> int:
        """Return the descriptor of the stream.

        Raises:
            OSError: It has none.
        """
        stream = self._stream()
        if stream is None:
            raise OSError(f"{self._name} is closed")
        return stream.fileno()

    def write(self, text: str) -> int:
        """Write a text, or drop it if it cannot be written."""
        stream = self._stream()
        if stream is None:
            return len(text)
        try:
            try:
                stream.write(text)
            except UnicodeEncodeError:
                encoding = self.encoding
                text = text.replace("…", "~")  # of a table, whose columns are to stay
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError):
            _give_up(stream)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or drop it if it cannot be written."""
        stream = self._stream()
        if stream is None:
            return
        try:
            stream.flush()
        except (OSError, ValueError):
            _give_up(stream)


def _give_up(stream: IO[str]) -> None:
    """Redirect a stream to nowhere; else its buffer would be written, and fail, at the end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


class _PlainConsole(Console):
    def render_str(self, text: str, **style: Any) -> Text:
        return super().render_str(escape_controls(text), **style)


def plain_console(name: StreamName, width: int | None = None) -> Console:
    """Build a console on a standard stream that prints text as it is, without markup.

    Control characters in it, which might command the terminal, are shown as escapes.

    Args:
        name: Name of the stream in `sys`.
        width: Number of letters in a line; None for the width of the terminal.
    """
    stream = cast("IO[str]", StandardStream(name))
    return _PlainConsole(file=stream, width=width, markup=False, emoji=False)


def replace_missing_streams() -> None:
    """Open the null device in place of standard streams that were closed at the start.

    Otherwise the next files and connections would get their numbers, and what a library prints
    would end up in them.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
