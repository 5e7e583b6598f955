"""Checksums of downloaded files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from hocket.errors import DataError, format_problems


def check_md5(name: str, digest: str, wanted: str) -> None:
    """Compare one digest with the published one.

    Args:
        name: Name of the file, for the error.
        digest: Its md5 sum.
        wanted: Published md5 sum.

    Raises:
        DataError: They differ.
    """
    if digest != wanted:
        raise DataError(
            f"{name} is damaged: its md5 sum is {digest}, the published one {wanted}; "
            "fetch it again"
        )


def file_digest(path: Path, algorithm: str) -> str:
    """Compute the md5 or sha256 sum of a file without loading it as a whole."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def check_sha256_list(files: Sequence[Path]) -> None:
    """Compare files with the SHA256SUMS in their folder and its parent, if any.

    Args:
        files: Files of one folder. Files that are not in a list are not compared.

    Raises:
        DataError: At least one sum differs, or a list cannot be parsed.
    """
    # Only the folder is resolved: the files may be links into a store elsewhere.
    folder = files[0].parent.resolve()
    lists = [place / "SHA256SUMS" for place in (folder, folder.parent)]
    problems = []
    for sums in filter(Path.is_file, lists):
        wanted = _parse_sums(sums)
        for file in files:
            name = (folder / file.name).relative_to(sums.parent).as_posix()
            if name not in wanted:
                continue
            if (digest := file_digest(file, "sha256")) != wanted[name]:
                problems.append(f"{file}: its sum is {digest}, {sums} says {wanted[name]}")
    if problems:
        raise DataError(
            format_problems("files differ from their listed sums; fetch them again", problems)
        )


def _parse_sums(sums: Path) -> dict[str, str]:
    """Return the sum of each file by its name, relative to the list.

    Raises:
        DataError: A line does not have the format of sha256sum.
    """
    wanted = {}
    for number, line in enumerate(sums.read_text(encoding="utf-8").splitlines(), start=1):
        digest, _, name = line.partition(" ")
        if len(digest) != 64 or not name.strip():
            raise DataError(
                f"{sums}, line {number}: found {line!r}, wanted '<sha256 sum>  <file>' as "
                "sha256sum writes it; mend the list or remove it"
            )
        # The second blank, or a star for binary mode, is part of the format, not of the name.
        wanted[name[1:]] = digest.lower()
    return wanted
