"""Files that are replaced atomically: a reader sees the old content or the new, never half."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_atomically(file: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path, and renames it to ``file`` at the end.

    The content has reached the disk before the rename. If the block raises, the temporary file
    is removed and ``file`` stays as it was. Only one process may write a file at a time.

    Raises:
        OSError: The file cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "numbers.txt")
    ...     with replace_atomically(file) as unfinished:
    ...         _ = unfinished.write_text("1 2 3")
    ...     file.read_text()
    '1 2 3'
    """
    unfinished = file.with_name(f"{file.name}.part")
    try:
        yield unfinished
        sync_path(unfinished)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text_atomically(file: Path, text: str) -> None:
    """Write a text file in UTF-8, replacing the old one atomically.

    Raises:
        OSError: The file cannot be written.
    """
    with replace_atomically(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def sync_path(path: Path) -> None:
    """Wait until a file, or the names in a directory, have reached the disk.

    Raises:
        OSError: The path cannot be opened, or the disk fails.
    """
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
