"""Output of a process that ends, which must not change its exit code if it is not read."""

import gc
import io
import os
import stat
from contextlib import suppress

from hocket.errors import escape_controls
from hocket.standard_stream import StandardStream


def write_last_words(text: str) -> None:
    """Write to standard error in one piece, as other processes write at the same time."""
    StandardStream("stderr").write(escape_controls(text))


def flush_files() -> None:
    """Write what streams and files have buffered, which Python does for those it can free.

    Of other files only those on a disk: the other end of a pipe may have no reader.
    """
    StandardStream("stdout").flush()
    StandardStream("stderr").flush()
    for each in gc.get_objects():
        # By its type: others may answer a question about their class with a warning.
        if type(each) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with suppress(OSError, ValueError):  # it is broken or closed
                if stat.S_ISREG(os.fstat(each.fileno()).st_mode):
                    each.flush()
