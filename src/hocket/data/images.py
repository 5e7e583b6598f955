"""Images and class numbers in a folder, which the package `datasets` reads."""

# Shapes: N examples, B batch, S side of the square images that the network receives.

import glob
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Generator, Tensor

from hocket.data.augment import Chain, Crop, Flip, Normalise
from hocket.data.batches import Batches, Transform
from hocket.data.dataset import Data, check_targets
from hocket.data.randomness import divide_rows
from hocket.errors import DataError, OptionError, import_extra, list_names

# The usual constants for ImageNet.
NORMALISE = Normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
TEST_SPLITS = ("test", "val", "validation")
SAVED = ("dataset_dict.json", "state.json")  # files that save_to_disk writes


@final
@dataclass(eq=False, repr=False)
class StoredImages:
    """Images of one split, decoded and cut to squares when their batch is served.

    Args:
        images: A `datasets.Dataset` with one column.
        targets: Class of each image, int64 (N,).
        size: S, in pixels.
        transform: Applied to each batch of raw images.
    """

    images: Any
    targets: Tensor
    size: int
    transform: Transform

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows_B: Tensor, rng: Generator) -> tuple[Tensor, Tensor]:
        """Return transformed images (B, 3, S, S) and targets (B,).

        Raises:
            DataError: An image cannot be decoded.
        """
        images = torch.stack([self._read_image(row) for row in rows_B.tolist()])
        return self.transform(images, rng), self.targets[rows_B]

    def divide(self, held: int, test: "StoredImages") -> tuple["StoredImages", "StoredImages"]:
        """Return the rest, and `held` images drawn at random, served like `test`."""
        rest, held_out = divide_rows(len(self), held)
        return (
            replace(self, images=self.images.select(rest), targets=self.targets[rest]),
            replace(test, images=self.images.select(held_out), targets=self.targets[held_out]),
        )

    def _read_image(self, row: int) -> Tensor:
        """Return the central square of one image as uint8 (3, S, S).

        Raises:
            DataError: The image is missing, cannot be decoded, or has more than 8 bits for each
                channel.
        """
        from PIL import Image, ImageOps

        try:
            (image,) = self.images[row].values()
        except Exception as error:  # of any class: that is up to the decoder of the format
            name = self._name(row)
            raise DataError(f"{name} cannot be decoded: {error}; replace it") from error
        if image is None:
            raise DataError(f"{self._name(row)} is missing; leave its row out")
        if image.mode[0] in "IF":  # which Pillow would cut off at 255
            raise DataError(
                f"{self._name(row)} has the mode {image.mode!r}, of more than 8 bits for each "
                "channel; convert it to 8 bits"
            )
        side = (self.size, self.size)
        square = ImageOps.fit(image.convert("RGB"), side, Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)

    def _name(self, row: int) -> str:
        """Return the number of an image, with its split and its file if they are known."""
        ((column, feature),) = self.images.features.items()
        undecoded = self.images.cast_column(column, replace(feature, decode=False))
        file = (undecoded[row][column] or {}).get("path")
        known = [str(each) for each in (self.images.split, file) if each]
        return f"image {row}" + f" ({', '.join(known)})" * bool(known)


def folder(
    *,
    data_dir: Path,
    batch_size: int,
    seed: int = 0,
    image: str = "image",
    label: str = "label",
    image_size: int = 224,
    augment: bool = True,
) -> Data:
    """Load images from `train/<class>/` and `test/<class>/`, or what `save_to_disk` wrote.

    Args:
        data_dir: Folder with these folders (or `val/` for `test/`), or one that
            `datasets.load_from_disk` reads.
        batch_size: Number of images in a batch.
        seed: Seed of order and augmentation.
        image: Column with the images.
        label: Column with the class numbers.
        image_size: S, side in pixels to which the central square of each image is resized.
        augment: Whether training images are padded by an eighth, cropped and flipped at random.

    Raises:
        DataError: The folder has no such images; later, while iterating, one cannot be decoded.
        OptionError: `image_size` is below 1, or a package is not installed.
    """
    if image_size < 1:
        raise OptionError(f"image_size is {image_size}; give 1 or more pixels")
    # Read both splits; the training decides how many classes there are.
    (train_images, train_N), (test_images, test_N) = (
        _select_columns(name, rows, image, label)
        for name, rows in _read_splits(data_dir).items()
    )
    classes = int(train_N.max()) + 1
    for targets_N in (train_N, test_N):
        check_targets(targets_N, classes)

    # Augment training images only.
    crop = Chain((Crop(padding=image_size // 8), Flip(), NORMALISE))
    train = StoredImages(train_images, train_N, image_size, crop if augment else NORMALISE)
    test = StoredImages(test_images, test_N, image_size, NORMALISE)
    return Data(
        name="folder",
        train=Batches(train, batch_size, seed=seed, shuffle=True),
        test=Batches(test, batch_size),
        classes=classes,
        shape=(3, image_size, image_size),
        kind="images",
    )


def _read_splits(data_dir: Path) -> dict[str, Any]:
    """Return the splits for training and test by name, each a `datasets.Dataset`.

    Raises:
        DataError: The folder cannot be read, or has no such splits.
        OptionError: A package is not installed.
    """
    datasets: Any = import_extra("datasets", "hf", "data set 'folder'")
    import_extra("PIL", "hf", "data set 'folder'")

    # Name the folders: the package takes a class `test` for a split, and omits hidden ones.
    test = next((name for name in TEST_SPLITS if (data_dir / name).is_dir()), "test")
    folders = {name: data_dir.absolute() / name for name in ("train", test)}
    files = {name: f"{glob.escape(str(path))}/**" for name, path in folders.items()}
    inner = [path for each in folders.values() for path in each.glob("*/")]
    if hidden := [str(path) for path in inner if path.name.startswith((".", "__"))]:
        raise DataError(
            f"folders whose names begin with '.' or '__' are not read: {list_names(hidden)}; "
            "rename or remove them"
        )
    # Let the package read them, or what it has saved.
    try:
        if any((data_dir / name).is_file() for name in SAVED):
            splits = datasets.load_from_disk(data_dir)
        else:
            splits = datasets.load_dataset("imagefolder", data_files=files)
    except Exception as error:  # of any class: that is up to the format
        raise DataError(
            f"cannot read images in {data_dir}: {error}; put them into "
            f"{data_dir / 'train'}/<class>/ and {data_dir / 'test'}/<class>/"
        ) from error

    # Find a split for the training and one for the test.
    names = list(splits) if isinstance(splits, dict) else []
    tests = [name for name in TEST_SPLITS if name in names]
    if "train" not in names or not tests:
        raise DataError(
            f"{data_dir} has the splits {', '.join(names) or 'none'}; wanted train, and "
            f"{' or '.join(TEST_SPLITS)}: make a split for each"
        )
    return {name: splits[name] for name in ("train", tests[0])}


def _select_columns(split: str, rows: Any, image: str, label: str) -> tuple[Any, Tensor]:
    """Return the images of a split, and their targets, int64 (N,).

    Raises:
        DataError: It is empty, there is no such column, or it has other values.
    """
    if not len(rows):
        raise DataError(f"split {split!r} has no images; put some into it")
    for option, column, kind in (("image", image, "Image"), ("label", label, "int")):
        found = getattr(rows.features.get(column), "dtype", "missing")
        if kind not in found:
            raise DataError(
                f"split {split!r} has no column {column!r} of type {kind} (it is {found}); "
                f"there are {', '.join(rows.features)}: name one with the option {option!r}, "
                "or give folders of two or more classes, all at the same depth"
            )
    # A split may have been saved to give tensors, or files that are not decoded.
    rows = rows.with_format(None)
    rows = rows.cast_column(image, replace(rows.features[image], decode=True))
    # A class number that is missing is -1, which is no class.
    targets = [-1 if number is None else number for number in rows[label]]
    return rows.select_columns([image]), torch.tensor(targets, device="cpu")
