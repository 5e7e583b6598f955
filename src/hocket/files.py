"""Files: read only if they are what they seem, and replaced atomically.

A link, a pipe or a device instead of a file leads somewhere else or never ends, so that
folders of unknown origin are read and written through these functions.
"""

import errno
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

# Windows has no such flags, and reads text unless it is told otherwise.
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK | _BINARY
_LOCKED_BYTE = 2**30
JSON_LIMIT = 2**26
"""Most bytes of a JSON file that is read."""
LINE_LIMIT = 2**22
"""Most bytes of a line that is read."""


def open_regular_file(file: Path, *, follow_links: bool = False) -> BufferedReader:
    """Open a file for reading, without waiting for a pipe or a device.

    Args:
        file: The file.
        follow_links: Open the target of a link, as the user has named the link.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    if not follow_links and file.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(file))
    links = 0 if follow_links else NO_LINK
    number = os.open(file, os.O_RDONLY | _NO_WAIT | _BINARY | links)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    return os.fdopen(number, "rb")


def read_json(file: Path, limit: int = JSON_LIMIT) -> Any:
    """Read a JSON file that the user has named.

    Args:
        file: The file, or a link to it.
        limit: Most bytes that it may have.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
        ValueError: It is not JSON, or too long or too deep for one.
    """
    with open_regular_file(file, follow_links=True) as opened:
        if (size := os.fstat(opened.fileno()).st_size) > limit:
            raise ValueError(f"it has {size} bytes, and at most {limit} are read")
        try:
            return json.loads(opened.read(size))
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def read_lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file, but for a last one that has no end or is too long.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    with open_regular_file(file) as opened:
        while (line := opened.readline(LINE_LIMIT)).endswith(b"\n"):
            yield line


def create_file(file: Path) -> int:
    """Create a file that did not exist, and return its descriptor, open for writing.

    Raises:
        OSError: It exists, if only as a link, or cannot be created.
    """
    return os.open(file, _NEW_FILE, 0o666)


def open_to_append(file: Path) -> FileIO:
    """Open a file to append to it without a buffer; it is created if it does not exist.

    Raises:
        OSError: It cannot be opened, or is a link, a pipe or a device.
    """
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINK | _BINARY
    return FileIO(os.open(file, flags, 0o666), "ab")


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
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    unfinished = file.with_name(f"{file.name}.part")
    # A link of that name, such as to a file outside the folder, is removed and not written to.
    unfinished.unlink(missing_ok=True)
    os.close(create_file(unfinished))
    try:
        yield unfinished
        sync_path(unfinished)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text_atomically(file: Path, text: str) -> None:
    """Write a text file in UTF-8, replacing the old one atomically.

    What has no UTF-8, such as bytes in the name of a folder, becomes a question mark.

    Raises:
        OSError: The file cannot be written.
    """
    with replace_atomically(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8", errors="replace")


def sync_path(path: Path) -> None:
    """Wait until a file, or the names in a directory, have reached the disk.

    Some network file systems do not support this for names, and write them when they like.

    Raises:
        OSError: The path cannot be opened, or the disk fails.
    """
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):  # Windows opens none
        return
    # Windows syncs no file that is open for reading only.
    number = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        refuses = error.errno in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
        if not (refuses and stat.S_ISDIR(os.fstat(number).st_mode)):
            raise
    finally:
        os.close(number)


def lock_file(number: int) -> bool:
    """Lock an open file against other processes; return False if one of them has locked it.

    The system unlocks it at the latest when this process ends.

    Args:
        number: Descriptor of the file, or of a folder except on Windows.

    Raises:
        OSError: The file system has no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        # Bytes behind the end, as nobody can read a byte that is locked.
        os.lseek(number, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(number, 0, os.SEEK_SET)
        return True
    import fcntl

    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_file(number: int) -> None:
    """Unlock a file that `lock_file` has locked, for copies of its descriptor, too."""
    if sys.platform != "win32":  # Windows hands no descriptor on
        import fcntl

        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_UN)
