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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hocket.checkpoint.serialize import unpack
from hocket.errors import CheckpointError, warn
from hocket.files import (
    JSON_LIMIT,
    create_file,
    lock_file,
    open_regular_file,
    sync_path,
    unlock_file,
)

FORMAT = 11
"""Version of all that is in a checkpoint; tests/checkpoint_structure.txt rises with it."""
MANIFEST = "manifest.json"
_PART = re.compile(r"\w[\w.-]*")
_REPLACED = ".replaced"
_NAME = re.compile(rf"tick-\d{{9}}-epoch-\d{{6}}({re.escape(_REPLACED)})?")


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
    """Description of a checkpoint, stored with the states of its stages.

    Attributes:
        tick: Number of ticks done.
        stages: Names of the parameters and buffers of each stage, as in the network.
        replicas: Number of replicas of each stage.
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
    (folder / name).unlink(missing_ok=True)
    with os.fdopen(create_file(folder / name), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileDigest(len(data), hashlib.sha256(data).hexdigest())


def finish_checkpoint(folder: Path, name: str, manifest: Manifest) -> None:
    """Write the manifest of a checkpoint whose parts are written, and give it its name.

    Args:
        folder: Directory of all checkpoints.
        name: Name of the checkpoint.
        manifest: Its manifest, with the digests of all parts.

    Raises:
        CheckpointError: A part is missing, for example because another machine wrote it to its
            own disk.
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
    finished, replaced = folder / name, folder / f"{name}{_REPLACED}"
    if finished.exists():
        # At every moment one of the two is complete under a name that can be resumed from.
        _remove(replaced)
        finished.rename(replaced)
    unfinished.rename(finished)
    sync_path(folder)
    with suppress(OSError):  # it is complete; what stays of the other is removed later
        _remove(replaced)


def newest_first(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, or the folder itself if it is one, without opening any.

    >>> newest_first(Path("does-not-exist"))
    []
    """
    if (folder / MANIFEST).exists():
        return [folder]
    if not folder.is_dir():
        return []
    found = (f for f in folder.iterdir() if _NAME.fullmatch(f.name))
    return sorted(found, key=_sort_key, reverse=True)


def _sort_key(checkpoint: Path) -> tuple[str, bool]:
    """Sort by tick and epoch; one that is being replaced is older than its replacement."""
    name = checkpoint.name.removesuffix(_REPLACED)
    return name, name == checkpoint.name


def read_manifest(folder: Path) -> Manifest:
    """Read and verify the manifest of a checkpoint.

    Raises:
        CheckpointError: The manifest is missing, damaged, malformed, or of another format.
    """  # noqa: DOC501  # a ValueError is caught here
    file = folder / MANIFEST
    try:
        stored = json.loads(_read_bytes(file))
        sha256, content = stored["sha256"], stored["content"]
        intact = hashlib.sha256(content.encode()).hexdigest() == sha256
        values: dict[str, Any] = json.loads(content) if intact else {"format": FORMAT}
        if intact and (found := values.pop("format")) == FORMAT:
            # All files are inside the folder.
            digests = values.pop("parts").items()
            parts = {part: FileDigest(**digest) for part, digest in digests}
            manifest = Manifest(parts=parts, **values)
            if not all(map(_PART.fullmatch, parts)):
                raise ValueError
            return manifest
        writer = values.get("versions", {}).get("hocket")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{str(file)!r} is not a checkpoint manifest") from None
    if not intact:
        raise CheckpointError(f"{str(file)!r} is damaged: its checksum does not match")
    raise CheckpointError(
        f"it was written by another version of Hocket ({str(writer)[:20]}, whose checkpoints "
        f"have format {str(found)[:20]}, and not {FORMAT}); resume with that version"
    )


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
    digest = manifest.parts[part]
    data = _read_bytes(file, digest.size)
    if hashlib.sha256(data).hexdigest() != digest.sha256:
        raise CheckpointError(f"{str(file)!r} is damaged: its checksum does not match")
    return unpack(data, repr(str(file)))


def keep_newest(folder: Path, keep: int, newest: str) -> list[Path]:
    """Remove all checkpoints except the newest ``keep``.

    A training that has written ``newest`` cannot have written later ones: they are of one that
    was continued from an earlier checkpoint. They are set aside, as they would take the place
    of those that this training writes.

    Args:
        folder: Directory of all checkpoints.
        keep: Number of checkpoints to keep.
        newest: Name of the checkpoint that was just written.

    Returns:
        Where later checkpoints have been set aside; empty if there were none.
    """
    checkpoints = newest_first(folder)
    later = [c for c in checkpoints if _sort_key(c) > (newest, True)]
    for old in checkpoints[len(later) + keep :]:
        _remove(old)
    # Rename later ones, so that they are not found any more.
    aside = []
    for checkpoint in later:
        number = 1
        while (path := checkpoint.with_name(f"aside-{number}-{checkpoint.name}")).exists():
            number += 1
        aside.append(checkpoint.rename(path))
    return aside


@contextmanager
def claim_folder(folder: Path, own: set[Path]) -> Iterator[None]:
    """Context manager that keeps others from writing checkpoints to a folder.

    Args:
        folder: Folder of checkpoints; created if it does not exist.
        own: Folders that this training has written checkpoints to, or was resumed from; the
            folder is added.

    Raises:
        CheckpointError: It has checkpoints of another training, or a fit that is under way
            uses it.
    """
    place = folder.resolve()
    if place not in own and (others := newest_first(folder)):
        raise CheckpointError(
            f"{str(folder)!r} has checkpoints of another training, such as "
            f"{others[0].name!r}; resume from it, or give each training a folder of its own"
        )
    with ExitStack() as stack:
        # Lock it, if it can be; the first checkpoint tells what is wrong with it. The system
        # unlocks it if this process is killed.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            number = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, number)
            if not lock_file(number):
                raise CheckpointError(
                    f"{str(folder)!r} is the folder of a fit that is under way; save "
                    "checkpoints of your own, or of another training, to another folder"
                )
            # Not only closed: workers of loaders, which were forked meanwhile, have a copy.
            stack.callback(unlock_file, number)
        own.add(place)
        yield


def remove_unfinished(folder: Path) -> None:
    """Remove checkpoints that were never finished, or warn that they stay."""
    for unfinished in folder.glob(".tick-*.part"):
        try:
            if unfinished.is_dir() and not unfinished.is_symlink():
                shutil.rmtree(unfinished)
            else:
                unfinished.unlink()
        except OSError as error:
            warn(f"cannot remove the unfinished {str(unfinished)!r}: {error.strerror}")


def _remove(checkpoint: Path) -> None:
    """Rename a checkpoint before removing it, so that half of one never looks complete."""
    if checkpoint.exists():
        renamed = unfinished_path(checkpoint.parent, f"{checkpoint.name}.old")
        checkpoint.rename(renamed)
        shutil.rmtree(renamed)


def _read_bytes(file: Path, size: int | None = None) -> bytes:
    """Read a file of a size; compared before it is read, as it may have been replaced.

    Raises:
        CheckpointError: It cannot be read, is a link or a device, or has another size.
    """
    try:
        with open_regular_file(file) as opened:
            found = os.fstat(opened.fileno()).st_size
            if size is not None and found != size:
                raise CheckpointError(
                    f"{str(file)!r} has {found} bytes and was written with {size}; it was "
                    "truncated or replaced"
                )
            if size is None and found > JSON_LIMIT:
                raise CheckpointError(f"{str(file)!r} has {found} bytes: it is no manifest")
            return opened.read(found)
    except OSError as error:
        raise CheckpointError(f"cannot read {str(file)!r}: {error.strerror}") from error
