"""A checkpoint on disk: a folder with a part for each stage, and a manifest that seals them.

It is written under another name and renamed once everything in it has reached the disk, so a
checkpoint is whole or not there. Whatever is read is first compared with its checksum.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hocket.checkpoint.serialize import unpack
from hocket.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"tick-\d{9}-epoch-\d{6}")


@dataclass(frozen=True)
class Seal:
    """What a file has to be.

    Attributes:
        size: In bytes.
        sha256: Of all of them, in hexadecimal.
    """

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is of.

    Attributes:
        tick: The number of ticks that had been done.
        stages: The names of the weights and buffers of each stage, as the network has them.
        replicas: How many processes shared each stage.
        setup: The choices of the training that it depends on, in words.
        versions: Of what the bits depend on.
        threads: Of PyTorch.
        course: Where the training by epochs had come to.
        parts: The seal of each file.
    """

    tick: int
    stages: list[list[str]]
    replicas: int
    setup: dict[str, str]
    versions: dict[str, str]
    threads: int
    course: dict[str, Any]
    parts: dict[str, Seal]


def checkpoint_name(tick: int, epoch: int) -> str:
    """What the checkpoint is called that is taken after so many ticks and whole epochs.

    >>> name_of(120, 3)
    'tick-000000120-epoch-000003'
    """
    return f"tick-{tick:09d}-epoch-{epoch:06d}"


def unfinished_path(folder: Path, name: str) -> Path:
    """Where a checkpoint is while it is being written."""
    return folder / f".{name}.part"


def write_file(folder: Path, name: str, data: memoryview | bytes) -> Seal:
    """Write a file, down to the disk.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Seal(len(data), hashlib.sha256(data).hexdigest())


def seal(folder: Path, name: str, manifest: Manifest) -> Path:
    """Seal what was written, and give it its name.

    Raises:
        CheckpointError: A part is not there, as on a disk that another machine does not see.
        OSError: The manifest cannot be written.
    """
    own = unfinished_path(folder, name)
    for part, seal in manifest.parts.items():
        file = own / part
        if not file.is_file() or file.stat().st_size != seal.size:
            raise CheckpointError(
                f"{part} was written, but is not to be seen in {str(own)!r}; give a folder "
                "that all processes share"
            )
    content = json.dumps(asdict(manifest) | {"format": FORMAT}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()
    # The content as a text: its checksum is that of these very characters.
    write_file(own, MANIFEST, json.dumps({"sha256": digest, "content": content}).encode())
    _sync(own)
    place = folder / name
    _remove(place)
    own.rename(place)
    _sync(folder)
    return place


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints in a folder, or the folder itself if it is one; none is opened."""
    if (folder / MANIFEST).exists():
        return [folder]
    if not folder.is_dir():
        return []
    return sorted((f for f in folder.iterdir() if _NAME.fullmatch(f.name)), reverse=True)


def read_manifest(folder: Path) -> Manifest:
    """What a checkpoint is of.

    Raises:
        CheckpointError: Its manifest is not there, damaged, or of another format.
    """
    file = folder / MANIFEST
    try:
        sealed = json.loads(_content(file))
        digest, content = sealed["sha256"], sealed["content"]
        same = hashlib.sha256(content.encode()).hexdigest() == digest
        values: dict[str, Any] = json.loads(content) if same else {"format": FORMAT}
        other = values.pop("format") != FORMAT
        if same and not other:
            parts = {_own(part): Seal(**seal) for part, seal in values.pop("parts").items()}
            return Manifest(parts=parts, **values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{str(file)!r} is no manifest of a checkpoint") from None
    if not same:
        raise CheckpointError(f"{str(file)!r} is damaged: its checksum is another one")
    raise CheckpointError(
        f"{str(file)!r} was written by another version of Hocket; go on with that one"
    )


def _own(part: str) -> str:
    """The name of a file in the checkpoint's own folder; ValueError for any other."""
    if Path(part).name != part:
        raise ValueError(part)
    return part


def read_part(folder: Path, part: str, manifest: Manifest) -> Any:
    """The state in one file of a checkpoint.

    Raises:
        CheckpointError: The file is not there, not the one that was written, or no state.
    """
    file = folder / part
    if part not in manifest.parts:
        raise CheckpointError(f"the checkpoint {str(folder)!r} has no part {part!r}")
    data, seal = _content(file), manifest.parts[part]
    if len(data) != seal.size:
        raise CheckpointError(
            f"{str(file)!r} has {len(data)} bytes and was written with {seal.size}; it was cut "
            "short or replaced"
        )
    if hashlib.sha256(data).hexdigest() != seal.sha256:
        raise CheckpointError(f"{str(file)!r} is damaged: its checksum is another one")
    return unpack(data, repr(str(file)))


def keep_newest(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ones."""
    for old in newest_first(folder)[keep:]:
        _remove(old)


def remove_unfinished(folder: Path) -> None:
    """Remove what was never finished."""
    for left in folder.glob(".tick-*.part"):
        shutil.rmtree(left)


def _remove(place: Path) -> None:
    """Not in place: half of a checkpoint must not look like one."""
    if place.exists():
        aside = unfinished_path(place.parent, f"{place.name}.old")
        place.rename(aside)
        shutil.rmtree(aside)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {str(file)!r}: {error.strerror}") from error


def _sync(folder: Path) -> None:
    """Have the names in a folder reach the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
