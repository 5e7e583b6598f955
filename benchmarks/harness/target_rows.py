"""Rows of the measurement of times to a loss, and the text that they are trained on."""

from pathlib import Path

from benchmarks.peers.row import Row
from benchmarks.peers.rows import BUILDERS, HOCKET, LOCAL, parse_method_row, parse_row
from hocket.errors import OptionError
from hocket.files import write_text_atomically
from hocket.methods import METHODS
from hocket.options import Named

BASE = "bp"
"""Row of back-propagation, whose updates all synchronous rows have."""


def is_method(row: str) -> bool:
    """Return True if a row is decoupled: a method of Hocket with updates of its own."""
    return parse_row(row).name not in BUILDERS


def accumulated(row: str) -> int:
    """Return the number of batches in an update of a row of Hocket; 1 for others."""
    parsed = Row.parse(row)
    name = parsed.name.removeprefix(HOCKET)
    known = name != parsed.name or (name in METHODS and name not in BUILDERS)
    named = Named(name, dict(parsed.options))
    return parse_method_row(Row(named, parsed.remedies)).method.accumulate if known else 1


def trained_row(row: str) -> str:
    """Return the row whose training tells the updates of a row."""
    return row if is_method(row) or Row.parse(row).name in LOCAL else BASE


def shorten_text(source: Path | None, characters: int | None, folder: Path) -> str | None:
    """Return the place of the data: a file with the beginning of a text, if asked for.

    Args:
        source: The text, or a folder with it; None for data without files.
        characters: Number of characters at the beginning; None for the whole source.
        folder: Folder in which the beginning is written.

    Raises:
        OptionError: There is no text at that place.
    """
    if source is None or characters is None:
        return None if source is None else str(source)
    whole = next(iter(sorted(source.glob("*.txt"))), source)
    if not whole.is_file():
        raise OptionError(
            f"there is no text in {str(source)!r}; give a .txt file or a folder with one, or "
            "no number of characters"
        )
    with whole.open(encoding="utf-8") as text:
        beginning = text.read(characters)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(folder / "text.txt", beginning)
    return str(folder / "text.txt")
