"""Whether files are, bit by bit, what their publisher put out."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from hocket.errors import DataError, listed


def check_md5(name: str, digest: str, wanted: str) -> None:
    """Compares one digest with the published one.

    Raises:
        DataError: They differ.
    """
    if digest != wanted:
        raise DataError(
            f"{name} is damaged: its md5 sum is {digest}, the published one {wanted}; "
            "fetch it again"
        )


def md5_of_file(path: Path) -> str:
    """The md5 sum of a file that need not fit into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def check_sha256_list(files: Sequence[Path]) -> None:
    """Compares files with the lists SHA256SUMS in their folder and the one above, if any.

    Args:
        files: All from one folder. Files that the list does not name are not compared.

    Raises:
        DataError: A sum differs, or the list cannot be read; all problems at once.
    """
    # The folder is resolved, the files are not: they may be links into a store elsewhere.
    folder = files[0].parent.resolve()
    lists = [up / "SHA256SUMS" for up in (folder, folder.parent)]
    problems = []
    for sums in filter(Path.is_file, lists):
        wanted = _read_list(sums)
        for file in files:
            name = (folder / file.name).relative_to(sums.parent).as_posix()
            if name not in wanted:
                continue
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != wanted[name]:
                problems.append(f"{file}: its sum is {digest}, {sums} says {wanted[name]}")
    if problems:
        raise DataError(
            listed("files differ from their listed sums; fetch them again", problems)
        )


def _read_list(sums: Path) -> dict[str, str]:
    """Sum of each file by name, the name relative to the list."""
    wanted = {}
    for number, line in enumerate(sums.read_text(encoding="utf-8").splitlines(), start=1):
        digest, _, name = line.partition(" ")
        if len(digest) != 64 or not name.strip():
            raise DataError(
                f"{sums}, line {number}: found {line!r}, wanted '<sha256 sum>  <file>' as "
                "sha256sum writes it; mend the list or remove it"
            )
        # The second blank, or a star for binary mode, belongs to the format, not to the name.
        wanted[name[1:]] = digest.lower()
    return wanted
