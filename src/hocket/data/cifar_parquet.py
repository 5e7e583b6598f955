"""CIFAR in the parquet layout of Hugging Face: one encoded image and one label for each row."""

# Shapes: N images.

import io
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from hocket.data.checksums import check_sha256_list
from hocket.data.cifar_release import Images, Parts, Release
from hocket.errors import DataError, OptionError

IMAGE_COLUMNS = ("img", "image")
# The lossless ones in use. Naming them nearly doubles the speed: Pillow tries all otherwise.
FORMATS = ("PNG", "WEBP")


def read_parquet(release: Release, folder: Path, subset: int | None = None) -> Parts:
    """All images of a release, or only the first training images, decoded.

    Args:
        release: What to expect.
        folder: Holds train-*.parquet and test-*.parquet, which are read in the order of names.
        subset: Number of training images to decode; None for all.

    Raises:
        DataError: A file is missing, unreadable or differs from SHA256SUMS, a column is
            missing, the number of rows is wrong, or an image is not 32 x 32.
        OptionError: pyarrow is not installed.
    """
    train = sorted(folder.glob("train-*.parquet"))
    test = sorted(folder.glob("test-*.parquet"))
    missing = [part for part, files in (("train", train), ("test", test)) if not files]
    if missing:
        found = ", ".join(path.name for path in [*train, *test]) or "nothing"
        lacks = " and ".join(f"{part}-*.parquet" for part in missing)
        raise DataError(
            f"{folder} lacks {lacks} (found {found}); copy all files of {release.name} there"
        )
    check_sha256_list([*train, *test])
    return Parts(
        train=_read(release, train, release.train_images, subset),
        test=_read(release, test, release.test_images, None),
    )


def _read(release: Release, files: list[Path], rows: int, limit: int | None) -> Images:
    """The first images of these files, after counting the rows of all."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # no stubs
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # no stubs
    except ImportError as error:
        raise OptionError(
            f"{files[0]} needs pyarrow, which is not installed; pip install pyarrow, or "
            f"use the original {release.archive}"
        ) from error
    try:
        shards = {file: pq.ParquetFile(file) for file in files}
        found = sum(shard.metadata.num_rows for shard in shards.values())
        if found != rows:
            names = ", ".join(file.name for file in files)
            raise DataError(
                f"{files[0].parent} has {found} rows in {names}, wanted {rows}; "
                "a file is missing, truncated or doubled: copy all files again"
            )
        wanted = rows if limit is None else limit
        inputs_N3HW = np.empty((wanted, 3, 32, 32), dtype=np.uint8)
        targets_N = torch.empty(wanted, dtype=torch.int64)
        for n, (where, image, label) in enumerate(islice(_rows(release, shards), wanted)):
            inputs_N3HW[n] = _decode(where, image)
            targets_N[n] = _label(where, label)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"a parquet file of {files[0].parent} cannot be read: {error}; fetch it again"
        ) from error
    return Images(torch.from_numpy(inputs_N3HW), targets_N)


def _rows(release: Release, shards: Mapping[Path, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Place, image and label of every row."""
    for file, shard in shards.items():
        found = shard.schema_arrow.names
        columns = [
            _column(file, found, IMAGE_COLUMNS),
            _column(file, found, release.label_columns),
        ]
        row = 0
        for batch in shard.iter_batches(batch_size=1000, columns=columns):
            images, labels = (batch.column(name).to_pylist() for name in columns)
            for image, label in zip(images, labels, strict=True):
                yield f"{file}, row {row}", image, label
                row += 1


def _column(file: Path, found: list[str], wanted: tuple[str, ...]) -> str:
    """The first of the wanted columns that is there."""
    for name in wanted:
        if name in found:
            return name
    raise DataError(
        f"{file} has the columns {', '.join(found)}, wanted {' or '.join(wanted)}; "
        "is this another data set?"
    )


def _decode(where: str, image: Any) -> np.ndarray:
    """Pixels of one row, uint8 (3, 32, 32)."""
    try:
        with Image.open(io.BytesIO(image["bytes"]), formats=FORMATS) as opened:
            pixels_HW3 = np.asarray(opened if opened.mode == "RGB" else opened.convert("RGB"))
    except (UnidentifiedImageError, OSError, TypeError, KeyError) as error:
        raise DataError(f"{where} cannot be decoded: {error}; fetch the file again") from error
    if pixels_HW3.shape != (32, 32, 3):
        height, width, _ = pixels_HW3.shape
        raise DataError(f"{where} is {height} x {width}, wanted 32 x 32; is this another set?")
    return pixels_HW3.transpose(2, 0, 1)


def _label(where: str, label: Any) -> int:
    """The class number of one row."""
    if not isinstance(label, int):
        raise DataError(
            f"{where} has the label {label!r}, wanted a number; fetch the file again"
        )
    return label
