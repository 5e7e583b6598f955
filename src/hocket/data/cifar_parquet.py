"""CIFAR in the parquet layout of Hugging Face: one encoded image and one label for each row."""

# Shapes: N images.

import io
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hocket.data.cifar_release import Images, Release
from hocket.errors import DataError, import_extra

IMAGE_COLUMNS = ("img", "image")
# Only the lossless formats in use: Pillow tries all otherwise, at nearly half the speed.
FORMATS = ("PNG", "WEBP")


def read_parquet(release: Release, folder: Path, subset: int | None) -> tuple[Images, Images]:
    """Decode the training images of a release, or only the first ones, and the test images.

    Args:
        release: Data set to read.
        folder: Folder with train-*.parquet and test-*.parquet, read in the order of names.
        subset: Number of training images to decode; None for all.

    Raises:
        DataError: A file or a column is missing, a file is unreadable, the number of rows is
            wrong, or an image is not 32 x 32.
        OptionError: pyarrow or Pillow is not installed.
    """
    train = sorted(folder.glob("train-*.parquet"))
    test = sorted(folder.glob("test-*.parquet"))
    missing = [part for part, files in (("train", train), ("test", test)) if not files]
    if missing:
        present = ", ".join(path.name for path in [*train, *test]) or "nothing"
        lacks = " and ".join(f"{part}-*.parquet" for part in missing)
        raise DataError(
            f"{folder} lacks {lacks} (found {present}); copy all files of {release.name} there"
        )
    return (
        _read(release, train, release.train_images, subset),
        _read(release, test, release.test_images, None),
    )


def _read(release: Release, files: list[Path], rows: int, limit: int | None) -> Images:
    """Decode the first `limit` images of these files, or all; there are to be `rows` rows.

    Raises:
        DataError: A file cannot be read, the files have another number of rows, or a label is
            no number.
    """
    for package in ("pyarrow", "PIL"):
        original = f"use the original {release.archive}"
        import_extra(package, "data", str(files[0]), alternative=original)
    import pyarrow as pa  # type: ignore[import-untyped]  # no stubs
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # no stubs

    try:
        # Count the rows of all files, then decode the first ones.
        shards = {file: pq.ParquetFile(file) for file in files}
        counted = sum(shard.metadata.num_rows for shard in shards.values())
        if counted != rows:
            names = ", ".join(file.name for file in files)
            raise DataError(
                f"{files[0].parent} has {counted} rows in {names}, wanted {rows}; "
                "a file is missing, truncated or doubled: copy all files again"
            )
        wanted = rows if limit is None else limit
        inputs_N3HW = np.empty((wanted, 3, 32, 32), dtype=np.uint8)
        targets_N = torch.empty(wanted, dtype=torch.int64, device="cpu")
        for n, (where, image, label) in enumerate(islice(_rows(release, shards), wanted)):
            inputs_N3HW[n] = _decode(where, image)
            if not isinstance(label, int):
                raise DataError(
                    f"{where} has the label {label!r}, wanted a number; fetch the file again"
                )
            targets_N[n] = label
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"a parquet file of {files[0].parent} cannot be read: {error}; fetch it again"
        ) from error
    return Images(torch.from_numpy(inputs_N3HW), targets_N)


def _rows(release: Release, shards: Mapping[Path, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield place, image and label of every row."""
    for file, shard in shards.items():
        names = shard.schema_arrow.names
        columns = [
            _choose_column(file, names, IMAGE_COLUMNS),
            _choose_column(file, names, release.label_columns),
        ]
        row = 0
        for batch in shard.iter_batches(batch_size=1000, columns=columns):
            images, labels = (batch.column(name).to_pylist() for name in columns)
            for image, label in zip(images, labels, strict=True):
                yield f"{file}, row {row}", image, label
                row += 1


def _choose_column(file: Path, names: list[str], wanted: tuple[str, ...]) -> str:
    """Return the first of the wanted columns that the file has.

    Raises:
        DataError: The file has none of them.
    """
    for name in wanted:
        if name in names:
            return name
    raise DataError(
        f"{file} has the columns {', '.join(names)}, wanted {' or '.join(wanted)}; "
        "is this another data set?"
    )


def _decode(where: str, image: Any) -> np.ndarray:
    """Decode the image of one row to uint8 pixels (3, 32, 32).

    Raises:
        DataError: The image cannot be decoded, or is not 32 x 32.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image["bytes"]), formats=FORMATS) as opened:
            pixels_HW3 = np.asarray(opened if opened.mode == "RGB" else opened.convert("RGB"))
    except Exception as error:  # of any class: that is up to the decoder of the format
        raise DataError(f"{where} cannot be decoded: {error}; fetch the file again") from error
    if pixels_HW3.shape != (32, 32, 3):
        height, width, _ = pixels_HW3.shape
        raise DataError(f"{where} is {height} x {width}, wanted 32 x 32; is this another set?")
    return pixels_HW3.transpose(2, 0, 1)
