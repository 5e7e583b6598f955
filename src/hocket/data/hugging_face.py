"""Image and vector data sets of the Hugging Face hub, loaded with the package `datasets`."""

# Shapes: N examples, C channels, H height, W width, D features.

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hocket.data.augment import Chain, Crop, Flip, Normalise
from hocket.data.batches import Batches, InMemory, Transform
from hocket.data.dataset import Data, check_targets
from hocket.data.image_folder import to_eight_bits
from hocket.errors import DataError, OptionError, import_extra


def hf(
    *,
    batch_size: int,
    seed: int = 0,
    dataset: str,
    config: str | None = None,
    image: str = "image",
    label: str = "label",
    train_split: str = "train",
    test_split: str = "test",
    image_size: int | None = None,
    augment: bool = False,
) -> Data:
    """Load a data set that fits into memory, by its name on the hub.

    Args:
        batch_size: Number of examples in a batch.
        seed: Seed of order and augmentation.
        dataset: Name on the hub, or a local folder that `datasets.load_dataset` takes.
        config: Configuration of the data set, if it has several.
        image: Column with the inputs, which are images or lists of numbers.
        label: Column with the class numbers.
        train_split: Split to train on.
        test_split: Split to test on.
        image_size: Side in pixels to which images are resized; None keeps their size.
        augment: Whether training images are cropped (padding 4) and flipped at random.

    Raises:
        DataError: The data set cannot be loaded, or does not fit the options.
        OptionError: A package is not installed, or `augment` is set for vectors.
    """
    datasets: Any = import_extra("datasets", "hf", "data set 'hf'")
    try:
        train_rows = datasets.load_dataset(dataset, config, split=train_split)
        test_rows = datasets.load_dataset(dataset, config, split=test_split)
    except Exception as error:  # damaged files raise errors of many classes
        raise DataError(
            f"cannot load {dataset!r}, splits {train_split!r} and {test_split!r}: {error}; "
            "check names and network"
        ) from error
    train = read_rows(train_rows, image, label, image_size)
    test = read_rows(test_rows, image, label, image_size)
    if train[0].dtype == test[0].dtype == torch.uint8:
        images = _equal_channels((train[0], test[0]))
        train, test = (images[0], train[1]), (images[1], test[1])
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DataError(
            f"{dataset}: training inputs are {tuple(train[0].shape[1:])}, test inputs "
            f"{tuple(test[0].shape[1:])}; pass image_size to make them equal"
        )
    classes = int(train[1].max()) + 1
    for _, targets_N in (train, test):
        check_targets(targets_N, classes)
    has_images = train[0].dtype == torch.uint8
    if augment and not has_images:
        raise OptionError(f"{dataset}: augment is for images, column {image!r} has vectors")
    transform: Transform | None = measure_normalisation(train[0]) if has_images else None
    train_transform = Chain((Crop(), Flip(), transform)) if augment and transform else transform
    return Data(
        name="hf",
        train=Batches(InMemory(*train, train_transform), batch_size, seed=seed, shuffle=True),
        test=Batches(InMemory(*test, transform), batch_size),
        classes=classes,
        shape=tuple(train[0].shape[1:]),
        kind="images" if has_images else "vectors",
    )


def read_rows(
    rows: Iterable[Mapping[str, Any]], image: str, label: str, image_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Convert all rows to tensors of inputs and targets.

    Args:
        rows: Rows of one split.
        image: Column with the inputs.
        label: Column with the class numbers.
        image_size: Side in pixels to which images are resized; None keeps their size.

    Returns:
        Images as uint8 (N, C, H, W), with C = 1 if all images are grey and 3 otherwise, or
        vectors as float32 (N, D); and targets, int64 (N,).

    Raises:
        DataError: There are no rows, a column is missing, a label is not a number, or the
            inputs differ in shape or are neither images nor vectors.
        OptionError: Pillow is not installed.
    """
    import_extra("PIL", "data", "data set 'hf'")
    inputs: list[Tensor] = []
    targets: list[int] = []
    for number, row in enumerate(rows):
        missing = [column for column in (image, label) if column not in row]
        if missing:
            raise DataError(
                f"no column {' and '.join(missing)}; there are {', '.join(row)}: "
                "name them with the options image and label"
            )
        if not isinstance(row[label], int):
            raise DataError(
                f"row {number}: {label!r} is {row[label]!r}, wanted a class number; "
                "choose another column with the option label"
            )
        inputs.append(_convert_input(row[image], image_size))
        targets.append(row[label])
        if not _fit_together(inputs[0], inputs[-1]):
            raise DataError(
                f"row {number} has the shape {tuple(inputs[-1].shape)}, row 0 "
                f"{tuple(inputs[0].shape)}; pass image_size to make images equal"
            )
    if not inputs:
        raise DataError("found 0 rows, wanted at least 1; choose another split")
    if inputs[0].dim() not in (1, 3):
        raise DataError(
            f"column {image!r} has the shape {tuple(inputs[0].shape)}, wanted images or "
            "vectors; choose another column with the option image"
        )
    if inputs[0].dtype == torch.uint8:
        inputs = _equal_channels(inputs)
    return torch.stack(inputs), torch.tensor(targets)


def _fit_together(one: Tensor, other: Tensor) -> bool:
    """Return True for inputs of one shape, but that one image may be grey and the other not."""
    images = one.dtype == other.dtype == torch.uint8
    return one.shape[1:] == other.shape[1:] if images else one.shape == other.shape


def _equal_channels(images: Sequence[Tensor]) -> list[Tensor]:
    """Return images (..., C, H, W) of as many channels: grey ones get three among others."""
    most = max(image.shape[-3] for image in images)
    return [image.expand(*image.shape[:-3], most, *image.shape[-2:]) for image in images]


def _convert_input(value: Any, image_size: int | None) -> Tensor:
    """Convert one image to uint8 (C, H, W), or numbers to float32 of any shape.

    A grey image has one channel, any other has three.

    Args:
        value: An image, or nested lists of numbers.
        image_size: Side in pixels to which images are resized; None keeps their size.

    Raises:
        DataError: The input is neither an image nor a list of numbers.
    """
    from PIL import Image

    if not isinstance(value, Image.Image):
        try:
            return torch.from_numpy(np.array(value, dtype=np.float32))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"an input is {value!r:.60}, wanted an image or a list of numbers; "
                "choose another column with the option image"
            ) from error
    try:
        converted = to_eight_bits(value).convert("L" if value.mode[0] in "1LI" else "RGB")
    except OSError as error:
        raise DataError(f"an image cannot be used: {error}") from error
    if image_size is not None:
        converted = converted.resize((image_size, image_size), Image.Resampling.BILINEAR)
    pixels_HWC = np.array(converted).reshape(converted.height, converted.width, -1)
    return torch.from_numpy(pixels_HWC).permute(2, 0, 1)


def measure_normalisation(images_NCHW: Tensor) -> Normalise:
    """Return a normalisation by mean and standard deviation of each channel of the images.

    Args:
        images_NCHW: Images, uint8.
    """
    white = 255.0
    # From histograms: exact, and without a float copy of all images.
    levels = torch.arange(256, dtype=torch.float64) / white
    mean, std = [], []
    for channel_NHW in images_NCHW.unbind(1):
        counts = torch.bincount(channel_NHW.flatten(), minlength=256).double()
        share = counts / counts.sum()
        centre = (share * levels).sum()
        mean.append(float(centre))
        # A channel of one colour has no deviation: keep its scale.
        std.append(float((share * (levels - centre).square()).sum().sqrt()) or 1.0)
    return Normalise(tuple(mean), tuple(std), white)
