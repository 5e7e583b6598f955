"""CIFAR as its authors published it: Python pickles, in a folder or still in the archive.

A pickle is a program, so these can only refer to the names that a NumPy array of bytes needs.
"""

# Shapes: N images.

import io
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hocket.data.cifar_release import Images, Release
from hocket.errors import DataError

_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    # Only of bytes: a file has no say in what the memory of an array means.
    ("numpy", "dtype"): lambda *_: np.dtype(np.uint8),
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that refuses all names but a NumPy array's."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(
                f"a pickle asks for {module}.{name}, which no CIFAR file needs; "
                "do not trust this file, fetch the original"
            )
        return _ALLOWED[module, name]


def read_pickles(release: Release, path: Path) -> tuple[Images, Images]:
    """Read all training and test images of a release.

    Args:
        release: Data set to read.
        path: The folder with the pickles, or the archive that contains it.

    Raises:
        DataError: A file is missing or no CIFAR batch, it refers to other names than an array
            needs, or there is another number of images.
    """
    # Read the files of the folder, or those in the archive.
    wanted = (*release.train_files, release.test_file)
    files = _read_archive(release, path)
    if path.is_dir():
        present = filter(Path.is_file, map(path.joinpath, wanted))
        files = ((file.name, file.read_bytes()) for file in present)
    images = {
        name: _unpickle(release, f"{path}: {name}", content)
        for name, content in files
        if name in wanted
    }
    missing = [name for name in wanted if name not in images]
    if missing:
        raise DataError(
            f"{path} lacks {', '.join(missing)}; wanted {', '.join(wanted)}; "
            f"fetch {release.archive} again"
        )
    # Join the training images, and count all images.
    parts = [images[name] for name in release.train_files]
    train = Images(
        torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts])
    )
    test = images[release.test_file]
    counts = len(train.inputs), len(test.inputs)
    if counts != (release.train_images, release.test_images):
        raise DataError(
            f"{path} holds {counts[0]} training and {counts[1]} test images, wanted "
            f"{release.train_images} and {release.test_images}; fetch {release.archive} again"
        )
    return train, test


def _read_archive(release: Release, archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each member of the folder without unpacking it to disk.

    Raises:
        DataError: The archive cannot be read.
    """
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                folder, _, name = member.name.removeprefix("./").partition("/")
                stream = members.extractfile(member)
                if folder == release.folder and stream is not None:
                    yield name, stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{archive} is no readable .tar.gz: {error}; fetch it again") from error


def _unpickle(release: Release, where: str, content: bytes) -> Images:
    """Read the images of one file from its content.

    Raises:
        DataError: The file cannot be unpickled, or does not hold a CIFAR batch.
    """
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # damaged pickles raise errors of many classes
        raise DataError(f"{where} is no readable pickle: {error}; fetch it again") from error
    rows = batch.get(b"data") if isinstance(batch, dict) else None
    labels = batch.get(release.pickled_label) if isinstance(batch, dict) else None
    if (
        not isinstance(rows, np.ndarray)
        or rows.dtype != np.uint8
        or rows.shape[1:] != (3 * 32 * 32,)
        or not isinstance(labels, list)
        or len(labels) != len(rows)
        or any(type(label) is not int for label in labels)
    ):
        raise DataError(
            f"{where} is no CIFAR batch: wanted 'data', uint8 of N rows of 3072, and "
            f"{release.pickled_label.decode()!r}, N labels; fetch it again"
        )
    inputs_N3HW = torch.from_numpy(rows.copy()).view(-1, 3, 32, 32)
    return Images(inputs_N3HW, torch.tensor(labels, dtype=torch.int64, device="cpu"))
