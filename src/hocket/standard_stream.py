"""Standard output and error whose failure ends nothing: a closed terminal, a full disk."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOBase
from typing import Any, Literal, TypeAlias

StreamName: TypeAlias = Literal["stdout", "stderr"]


class StandardStream(TextIOBase):
    """Standard output or error, as it is at each call.

    Letters that its encoding lacks are written as escapes. Text that cannot be written is
    dropped: a training and its results do not depend on anybody who reads along.

    Args:
        name: Name of the stream in `sys`.
    """

    def __init__(self, name: StreamName) -> None:
        self._name = name

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property is an attribute
        """Encoding of the stream."""
        return getattr(getattr(sys, self._name), "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        with self._or_nowhere() as stream:
            return bool(stream.isatty())
        return False

    def write(self, text: str) -> int:
        """Write a text, or drop it if it cannot be written."""
        with self._or_nowhere() as stream:
            try:
                stream.write(text)
            except UnicodeEncodeError:
                encoding = self.encoding
                text = text.replace("…", "~")  # of a table, whose columns are to stay
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or drop it if it cannot be written."""
        with self._or_nowhere() as stream:
            stream.flush()

    @contextmanager
    def _or_nowhere(self) -> Iterator[Any]:
        """Context manager that gives the stream, and leads it to nowhere if it fails."""
        stream = getattr(sys, self._name)
        # Not the proxy that a bar on the terminal puts before it.
        stream = getattr(stream, "rich_proxied_file", stream)
        try:
            yield stream
        except (AttributeError, OSError, ValueError):  # it is None, broken or closed
            # Else its buffer would be written, and fail, at the end.
            with suppress(AttributeError, OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                try:
                    os.dup2(nowhere, stream.fileno())
                finally:
                    os.close(nowhere)


def fill_standard_streams() -> None:
    """Open the null device for each standard stream that is closed.

    Otherwise the next files and connections would get their numbers, and what a library prints
    would be written into them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)  # it has taken the lowest number that is free
    os.close(number)
