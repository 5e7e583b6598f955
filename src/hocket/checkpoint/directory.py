"""A checkpoint directory: a file for each stage, and a manifest with their checksums.

It is written under a temporary name and renamed once everything in it has reached the disk, so
a checkpoint is either complete or absent. Every file is compared with its checksum before it is
parsed.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hocket.atomic import sync_path
from hocket.checkpoint.serialize import unpack
from hocket.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"tick-\d{9}-epoch-\d{6}")


@dataclass(frozen=True)
class FileDigest:
    """Size and checksum of a file, as it was written.

    Attributes:
        size: In bytes.
        sha256: In hexadecimal.
    """

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Description of a checkpoint, stored beside the states of its stages.

    Attributes:
        tick: Number of ticks done.
        stages: Names of the parameters and buffers of each stage, as in the network.
        replicas: Number of processes that shared each stage.
        setup: Options that the result of the training depends on, as text.
        versions: Versions of the software that the bits depend on.
        threads: Number of PyTorch's threads.
        fit: State of the fit: epochs done and results so far.
        parts: Digest of each file.
    """

    tick: int
    stages: list[list[str]]
    replicas: int
    setup: dict[str, str]
    versions: dict[str, str]
    threads: int
    fit: dict[str, Any]
    parts: dict[str, FileDigest]


def checkpoint_name(tick: int, epoch: int) -> str:
    """Return the name of the checkpoint taken after a number of ticks and full epochs.

    >>> checkpoint_name(120, 3)
    'tick-000000120-epoch-000003'
    """
    return f"tick-{tick:09d}-epoch-{epoch:06d}"


def unfinished_path(folder: Path, name: str) -> Path:
    """Return the temporary directory of a checkpoint that is being written."""
    return folder / f".{name}.part"


def write_file(folder: Path, name: str, data: memoryview | bytes) -> FileDigest:
    """Write a file, wait until it has reached the disk, and return its digest.

    Args:
        folder: Directory of the file; created if it does not exist.
        name: Name of the file.
        data: Content.

    Raises:
        OSError: The file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileDigest(len(data), hashlib.sha256(data).hexdigest())


def finish_checkpoint(folder: Path, name: str, manifest: Manifest) -> Path:
    """Write the manifest of a checkpoint whose parts are written, and give it its name.

    Args:
        folder: Directory of all checkpoints.
        name: Name of the checkpoint.
        manifest: Its manifest, with the digests of all parts.

    Returns:
        The directory of the checkpoint.

    Raises:
        CheckpointError: A part is missing, for example because another machine wrote it to a
            disk of its own.
        OSError: The manifest cannot be written.
    """
    unfinished = unfinished_path(folder, name)
    for part, digest in manifest.parts.items():
        file = unfinished / part
        if not file.is_file() or file.stat().st_size != digest.size:
            raise CheckpointError(
                f"{part} was written, but is not visible in {str(unfinished)!r}; give a folder "
                "that all processes share"
            )
    content = json.dumps(asdict(manifest) | {"format": FORMAT}, sort_keys=True)
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    # The content is stored as a string, so that the checksum covers exactly these characters.
    write_file(
        unfinished, MANIFEST, json.dumps({"sha256": sha256, "content": content}).encode()
    )
    sync_path(unfinished)
    finished = folder / name
    _remove(finished)
    unfinished.rename(finished)
    sync_path(folder)
    return finished


def newest_first(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, or the folder itself if it is one, without opening any.

    >>> newest_first(Path("does-not-exist"))
    []
    """
    if (folder / MANIFEST).exists():
        return [folder]
    if not folder.is_dir():
        return []
    return sorted((f for f in folder.iterdir() if _NAME.fullmatch(f.name)), reverse=True)


def read_manifest(folder: Path) -> Manifest:
    """Read and verify the manifest of a checkpoint.

    Raises:
        CheckpointError: The manifest is missing, damaged, or of another format.
    """
    file = folder / MANIFEST
    try:
        signed = json.loads(_read_bytes(file))
        sha256, content = signed["sha256"], signed["content"]
        intact = hashlib.sha256(content.encode()).hexdigest() == sha256
        values: dict[str, Any] = json.loads(content) if intact else {"format": FORMAT}
        other_format = values.pop("format") != FORMAT
        if intact and not other_format:
            parts = {
                _require_file_name(part): FileDigest(**digest)
                for part, digest in values.pop("parts").items()
            }
            return Manifest(parts=parts, **values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{str(file)!r} is not a checkpoint manifest") from None
    if not intact:
        raise CheckpointError(f"{str(file)!r} is damaged: its checksum does not match")
    raise CheckpointError(
        f"{str(file)!r} was written by another version of Hocket; resume with that version"
    )


def _require_file_name(part: str) -> str:
    """Return a name without folders.

    Raises:
        ValueError: The name has a folder.
    """
    if Path(part).name != part:
        raise ValueError(part)
    return part


def read_part(folder: Path, part: str, manifest: Manifest) -> Any:
    """Read and verify the state in one file of a checkpoint.

    Args:
        folder: Directory of the checkpoint.
        part: Name of the file.
        manifest: Manifest of the checkpoint.

    Raises:
        CheckpointError: The file is missing, was changed, or holds no state.
    """
    file = folder / part
    if part not in manifest.parts:
        raise CheckpointError(f"the checkpoint {str(folder)!r} has no part {part!r}")
    data, digest = _read_bytes(file), manifest.parts[part]
    if len(data) != digest.size:
        raise CheckpointError(
            f"{str(file)!r} has {len(data)} bytes and was written with {digest.size}; it was "
            "truncated or replaced"
        )
    if hashlib.sha256(data).hexdigest() != digest.sha256:
        raise CheckpointError(f"{str(file)!r} is damaged: its checksum does not match")
    return unpack(data, repr(str(file)))


def keep_newest(folder: Path, keep: int) -> None:
    """Remove all checkpoints except the newest ``keep``."""
    for old in newest_first(folder)[keep:]:
        _remove(old)


def remove_unfinished(folder: Path) -> None:
    """Remove checkpoints that were never finished."""
    for unfinished in folder.glob(".tick-*.part"):
        shutil.rmtree(unfinished)


def _remove(checkpoint: Path) -> None:
    """Rename a checkpoint before removing it, so that half of one never looks complete."""
    if checkpoint.exists():
        renamed = unfinished_path(checkpoint.parent, f"{checkpoint.name}.old")
        checkpoint.rename(renamed)
        shutil.rmtree(renamed)


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {str(file)!r}: {error.strerror}") from error
