"""CIFAR-10 and CIFAR-100 as published: names, counts and constants."""

# Shapes: N images.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

MeanStd = tuple[tuple[float, float, float], tuple[float, float, float]]


class Images(NamedTuple):
    """Raw images, uint8 (N, 3, 32, 32), and their targets, int64 (N,)."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Release:
    """Properties of one published data set.

    Args:
        name: Name of the data set, and of the folder with its parquet files.
        classes: Number of classes.
        folder: Name of the folder with the original pickles.
        archive: File name of the original archive, which holds `folder`.
        train_files: Names of the pickles of training images, in order.
        test_file: Name of the pickle of test images.
        pickled_label: Key of the labels in a pickle.
        label_columns: Columns of a parquet file that may hold the labels, best first.
        normalisations: Mean and standard deviation of each channel, by the paper that has them.
        train_images: Number of training images.
        test_images: Number of test images.
    """

    name: str
    classes: int
    folder: str
    archive: str
    train_files: tuple[str, ...]
    test_file: str
    pickled_label: bytes
    label_columns: tuple[str, ...]
    normalisations: Mapping[str, MeanStd]
    train_images: int = 50_000
    test_images: int = 10_000


CIFAR10 = Release(
    name="cifar10",
    classes=10,
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
    pickled_label=b"labels",
    label_columns=("label",),
    normalisations={
        # The official FDG code. Its standard deviations are means of the deviation within each
        # image, smaller than the deviation of all pixels; kept to reproduce the papers.
        "fdg": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        # The official ADL code: the deviation of all training pixels.
        "adl": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    },
)

CIFAR100 = Release(
    name="cifar100",
    classes=100,
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train_files=("train",),
    test_file="test",
    pickled_label=b"fine_labels",
    label_columns=("fine_label", "label"),
    normalisations={
        # The official FDG code.
        "fdg": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    },
)
