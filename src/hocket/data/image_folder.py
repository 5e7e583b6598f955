"""Images in one sub-folder for each class, decoded only when their batch is due."""

# Shapes: B batch, S side of the square that the network sees.

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Generator, Tensor

from hocket.data.augment import Normalise
from hocket.data.batches import Batches
from hocket.data.dataset import Data, check_targets
from hocket.errors import DataError, OptionError, listed

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
# The constants that ImageNet networks are usually trained with.
NORMALISE = Normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of the part of an image to be shown, in pixels."""
View = Callable[[int, int, Generator], Box]
"""Which part of an image of this width and height to show."""


def random_box(width: int, height: int, chance: Generator) -> Box:
    """8 to 100 % of the area, its sides in proportion 3:4 to 4:3, anywhere in the image."""
    for _ in range(10):
        area, ratio, x, y = torch.rand(4, generator=chance, dtype=torch.float64).tolist()
        wanted = width * height * (0.08 + 0.92 * area)
        proportion = math.exp((2 * ratio - 1) * math.log(4 / 3))
        w, h = math.sqrt(wanted * proportion), math.sqrt(wanted / proportion)
        if w <= width and h <= height:
            left, top = x * (width - w), y * (height - h)
            return left, top, left + w, top + h
    # Ten boxes did not fit: the image is very long or very high.
    return centre_box(width, height, chance, part=1.0)


def centre_box(width: int, height: int, chance: Generator, *, part: float = 7 / 8) -> Box:
    """A central square, its side this part of the shorter one; 7/8 is 224 out of 256."""
    side = part * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


@final
class ImageFiles:
    """Image files and their classes, decoded batch by batch.

    Args:
        paths: One file for each example.
        targets: Its class, int64 (N,).
        size: S, in pixels.
        view: Which part of an image to show.
        flip: Whether to mirror each image with probability one half.
    """

    def __init__(
        self, paths: list[Path], targets: Tensor, size: int, view: View, *, flip: bool
    ) -> None:
        self.paths = paths
        self.targets = targets
        self.size = size
        self.view = view
        self.flip = flip

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows_B: Tensor, chance: Generator) -> tuple[Tensor, Tensor]:
        """Normalised images (B, 3, S, S) and targets (B,).

        Raises:
            DataError: A file cannot be decoded.
        """
        images = [self._image(self.paths[row], chance) for row in rows_B.tolist()]
        return NORMALISE(torch.stack(images), chance), self.targets[rows_B]

    def _image(self, path: Path, chance: Generator) -> Tensor:
        """The shown part of one image, uint8 (3, S, S)."""
        try:
            with Image.open(path) as opened:
                image = opened.convert("RGB")
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise DataError(
                f"{path} cannot be decoded: {error}; replace or remove the file"
            ) from error
        box = self.view(image.width, image.height, chance)
        side = (self.size, self.size)
        shown = image.resize(side, Image.Resampling.BILINEAR, box=box)
        pixels_3SS = torch.from_numpy(np.array(shown)).permute(2, 0, 1)
        if self.flip and torch.rand((), generator=chance) < 0.5:
            pixels_3SS = pixels_3SS.flip(2)
        return pixels_3SS


def folder(
    *,
    data_dir: Path,
    batch_size: int,
    seed: int = 0,
    image_size: int = 224,
    augment: bool = True,
) -> Data:
    """Images in `train/<class>/` and `test/<class>/` or `val/<class>/`, classes by name.

    Args:
        data_dir: Folder that contains `train` and `test` or `val`.
        batch_size: Images in a batch.
        seed: Decides order and augmentation.
        image_size: S, side of the images in pixels.
        augment: Whether training images are cropped, resized and mirrored at random. Otherwise
            they are treated as the test images are: the central 7/8 of the shorter side.

    Raises:
        DataError: A folder is missing, a class has no images, or training and test differ in
            their classes; later, while iterating, a file cannot be decoded.
        OptionError: `image_size` is below 1.
    """
    if image_size < 1:
        raise OptionError(f"image_size is {image_size}; give 1 or more pixels")
    train = _classes(data_dir, ("train",))
    test = _classes(data_dir, ("test", "val"))
    if list(train) != list(test):
        odd = ", ".join(sorted(set(train) ^ set(test)))
        raise DataError(
            f"{data_dir}: training has {len(train)} classes, the test {len(test)}; only in "
            f"one of them: {odd}; give both the same sub-folders"
        )

    def served(classes: Mapping[str, list[Path]], view: View, *, training: bool) -> Batches:
        paths = [path for files in classes.values() for path in files]
        sizes = torch.tensor([len(files) for files in classes.values()])
        targets_N = torch.repeat_interleave(torch.arange(len(classes)), sizes)
        check_targets(targets_N, len(classes))
        examples = ImageFiles(paths, targets_N, image_size, view, flip=training and augment)
        return Batches(examples, batch_size, seed=seed, shuffle=training)

    return Data(
        name="folder",
        train=served(train, random_box if augment else centre_box, training=True),
        test=served(test, centre_box, training=False),
        classes=len(train),
        shape=(3, image_size, image_size),
        kind="images",
    )


def _classes(data_dir: Path, names: tuple[str, ...]) -> dict[str, list[Path]]:
    """Image files of each class, both sorted by name, from the first of these folders."""
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
        raise DataError(listed(f"{present[0]} has empty classes", problems))
    return classes
