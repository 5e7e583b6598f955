"""Images in one sub-folder for each class, decoded when their batch is served."""

# Shapes: B batch, S side of the square images that the network receives.

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Generator, Tensor

from hocket.data.augment import Normalise
from hocket.data.batches import Batches
from hocket.data.dataset import Data, check_targets
from hocket.data.randomness import divide_rows
from hocket.errors import DataError, OptionError, format_problems, import_extra, warn

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
# The usual constants for ImageNet.
NORMALISE = Normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a crop, in pixels."""
ChooseBox = Callable[[int, int, Generator], Box]
"""Function that returns the crop of an image from its width, its height and a generator."""


def random_box(width: int, height: int, rng: Generator) -> Box:
    """Draw a crop of 8 to 100 % of the area, with an aspect ratio of 3:4 to 4:3.

    Args:
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
        rng: Generator to draw from.
    """
    for _ in range(10):
        area, ratio, x, y = torch.rand(4, generator=rng, dtype=torch.float64).tolist()
        crop_area = width * height * (0.08 + 0.92 * area)
        proportion = math.exp((2 * ratio - 1) * math.log(4 / 3))
        w, h = math.sqrt(crop_area * proportion), math.sqrt(crop_area / proportion)
        if w <= width and h <= height:
            left, top = x * (width - w), y * (height - h)
            return left, top, left + w, top + h
    # Ten boxes did not fit: the image is very wide or very high.
    return centre_box(width, height, rng, fraction=1.0)


def centre_box(width: int, height: int, rng: Generator, *, fraction: float = 7 / 8) -> Box:
    """Return the central square crop.

    Args:
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
        rng: Not used.
        fraction: Side of the crop, as a fraction of the shorter side; 7/8 is 224 of 256.
    """
    side = fraction * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


@final
class ImageFiles:
    """Image files and their classes, decoded batch by batch.

    Args:
        paths: File of each example.
        targets: Class of each example, int64 (N,).
        size: S, in pixels.
        choose_box: Function that returns the crop of each image.
        flip: Whether to flip each image horizontally with probability 1/2.

    Raises:
        OptionError: Pillow is not installed.
    """

    def __init__(
        self,
        paths: list[Path],
        targets: Tensor,
        size: int,
        choose_box: ChooseBox,
        *,
        flip: bool,
    ) -> None:
        import_extra("PIL", "data", "data set 'folder'")
        self.paths = paths
        self.targets = targets
        self.size = size
        self.choose_box = choose_box
        self.flip = flip

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows_B: Tensor, rng: Generator) -> tuple[Tensor, Tensor]:
        """Return normalised images (B, 3, S, S) and targets (B,).

        Raises:
            DataError: A file cannot be decoded.
        """
        images = [self._read_image(self.paths[row], rng) for row in rows_B.tolist()]
        return NORMALISE(torch.stack(images), rng), self.targets[rows_B]

    def divide(self, held: int, test: "ImageFiles") -> tuple["ImageFiles", "ImageFiles"]:
        """Return the rest, and `held` files drawn at random, cropped as those of `test`."""

        def part(rows: Tensor, like: ImageFiles) -> ImageFiles:
            paths = [self.paths[row] for row in rows.tolist()]
            targets = self.targets[rows]
            return ImageFiles(paths, targets, like.size, like.choose_box, flip=like.flip)

        rest, held_out = divide_rows(len(self), held)
        return part(rest, self), part(held_out, test)

    def _read_image(self, path: Path, rng: Generator) -> Tensor:
        """Read, crop and resize one image to uint8 (3, S, S).

        Raises:
            DataError: The image cannot be decoded.
        """
        from PIL import Image

        try:
            with Image.open(path) as opened:
                image = to_eight_bits(opened).convert("RGB")
        except Exception as error:  # of any class: that is up to the decoder of the format
            raise DataError(
                f"{path} cannot be decoded: {error}; replace or remove the file"
            ) from error
        box = self.choose_box(image.width, image.height, rng)
        side = (self.size, self.size)
        resized = image.resize(side, Image.Resampling.BILINEAR, box=box)
        pixels_3SS = torch.from_numpy(np.array(resized)).permute(2, 0, 1)
        if self.flip and torch.rand((), generator=rng) < 0.5:
            pixels_3SS = pixels_3SS.flip(2)
        return pixels_3SS


def to_eight_bits(image: "Picture") -> "Picture":
    """Return an image with 8 bits for each channel; Pillow would cut off larger numbers.

    Raises:
        OSError: Its numbers have no known range.
    """
    from PIL import Image

    if image.mode == "F":
        raise OSError("its pixels are floating point numbers")
    if not image.mode.startswith("I"):
        return image
    white = 2**16 - 1  # of 16 bits, which older Pillow reads as 32
    pixels = np.asarray(image).astype(np.float64) / white
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))


def folder(
    *,
    data_dir: Path,
    batch_size: int,
    seed: int = 0,
    image_size: int = 224,
    augment: bool = True,
) -> Data:
    """Load images from `train/<class>/` and `test/<class>/` or `val/<class>/`.

    Classes are numbered in the order of their names.

    Args:
        data_dir: Folder that contains `train` and `test` or `val`.
        batch_size: Number of images in a batch.
        seed: Seed of order and augmentation.
        image_size: S, side of the images in pixels.
        augment: Whether training images are cropped, resized and flipped at random. Otherwise
            they are cropped like test images: the central 7/8 of the shorter side.

    Raises:
        DataError: A folder is missing, a class has no images, or training and test differ in
            their classes; later, while iterating, a file cannot be decoded.
        OptionError: `image_size` is below 1, or Pillow is not installed.
    """
    if image_size < 1:
        raise OptionError(f"image_size is {image_size}; give 1 or more pixels")
    train = _list_classes(data_dir, ("train",))
    test = _list_classes(data_dir, ("test", "val"))
    if list(train) != list(test):
        unpaired = ", ".join(sorted(set(train) ^ set(test)))
        raise DataError(
            f"{data_dir}: training has {len(train)} classes, the test {len(test)}; only in "
            f"one of them: {unpaired}; give both the same sub-folders"
        )

    def build_batches(
        classes: Mapping[str, list[Path]], choose_box: ChooseBox, *, training: bool
    ) -> Batches:
        paths = [path for files in classes.values() for path in files]
        sizes = torch.tensor([len(files) for files in classes.values()])
        targets_N = torch.repeat_interleave(torch.arange(len(classes)), sizes)
        check_targets(targets_N, len(classes))
        flip = training and augment
        examples = ImageFiles(paths, targets_N, image_size, choose_box, flip=flip)
        return Batches(examples, batch_size, seed=seed, shuffle=training)

    return Data(
        name="folder",
        train=build_batches(train, random_box if augment else centre_box, training=True),
        test=build_batches(test, centre_box, training=False),
        classes=len(train),
        shape=(3, image_size, image_size),
        kind="images",
    )


def _list_classes(data_dir: Path, names: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return the image files of each class from the first of these folders that exists.

    Classes and files are sorted by name.

    Raises:
        DataError: There is no such folder, it has no classes, or a class has no images.
    """
    present = [data_dir / name for name in names if (data_dir / name).is_dir()]
    if not present:
        raise DataError(
            f"{data_dir} has no folder {' or '.join(names)}; "
            f"put the images into {data_dir / names[0]}/<class>/"
        )
    classes = {
        entry.name: sorted(p for p in entry.iterdir() if p.suffix.lower() in SUFFIXES)
        for entry in sorted(present[0].iterdir())
        if entry.is_dir()
    }
    if not classes:
        raise DataError(f"{present[0]} has no sub-folders; make one for each class")
    problems = [
        f"class {name!r} has 0 images ({', '.join(sorted(SUFFIXES))}); add some, or remove it"
        for name, files in classes.items()
        if not files
    ]
    if problems:
        raise DataError(format_problems(f"{present[0]} has empty classes", problems))
    _warn_of_left_out(present[0], classes)
    return classes


def _warn_of_left_out(part: Path, classes: Iterable[str]) -> None:
    """Warn of images in other formats, of images outside classes, and of deeper folders.

    Args:
        part: Folder of the classes.
        classes: Names of their folders.
    """
    import_extra("PIL", "data", "data set 'folder'")
    from PIL import Image

    images = Image.registered_extensions().keys()
    beside = [path.suffix.lower() for path in part.iterdir()]
    left_out = Counter(f"{suffix} outside of classes" for suffix in beside if suffix in images)
    for name in classes:
        for path in (part / name).iterdir():
            suffix = path.suffix.lower()
            if path.is_dir():
                left_out["folder in a class"] += 1
            elif suffix in images - SUFFIXES:
                left_out[suffix] += 1
    if left_out:
        found = ", ".join(f"{count} x {kind}" for kind, count in sorted(left_out.items()))
        warn(
            f"{part}: these are left out: {found}; images are read from the folder of each "
            f"class, in the formats {', '.join(sorted(SUFFIXES))}",
        )
